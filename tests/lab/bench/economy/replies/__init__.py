"""What is no part of a document, and what is: replies to "send only the section X", and what becomes of each."""
