"""Rules of access: accounts, addresses, and the permission that each request needs. Pure, but for `files`."""
