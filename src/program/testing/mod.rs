//! What the tests of several programs share; the programs themselves have none of it.

#[cfg(feature = "program")]
pub mod pages;
#[cfg(feature = "engine-program")]
pub mod settings;
