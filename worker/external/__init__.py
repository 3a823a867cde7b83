"""Resources that validation rules may use outside of their process."""
