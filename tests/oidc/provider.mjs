// A real OpenID Connect provider (npm: oidc-provider): `node provider.mjs PORT RELAY_URL`, from the folder with its packages.
// Any name signs in, with any password; ada is an operator, ben a user, eve nobody.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [port, relay] = process.argv.slice(2);
const found = createRequire(`${process.cwd()}/`).resolve("oidc-provider");
const { Provider } = await import(pathToFileURL(found).href);
const groups = { ada: ["admins", "staff"], ben: ["staff"], eve: ["guests"] };
const { generateKeyPair, exportJWK } = await import(
  pathToFileURL(createRequire(found).resolve("jose")).href
);
const { privateKey } = await generateKeyPair("ES256", { extractable: true });
const key = { ...(await exportJWK(privateKey)), use: "sig", alg: "ES256" };
const issuer = `http://localhost:${port}`; // another site than the relay, which is 127.0.0.1
const provider = new Provider(issuer, {
  clients: [
    {
      client_id: "relay",
      client_secret: "secret-of-the-relay",
      redirect_uris: [`${relay}/sign-in/callback`],
      post_logout_redirect_uris: [`${relay}/sign-in`],
      id_token_signed_response_alg: "ES256",
    },
  ],
  claims: { openid: ["sub"], groups: ["groups"] },
  scopes: ["openid", "groups"],
  conformIdTokenClaims: false,
  cookies: { keys: ["for tests alone"] },
  jwks: { keys: [key] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, groups: groups[id] ?? [] }) }),
});
provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
