//! Steps in git repositories, fetched from a server on the loopback interface. Without root.

mod credentials;
mod hostile;
mod program;
mod revisions;
mod setup;
