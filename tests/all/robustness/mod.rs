//! Bad input never causes a panic, a hang, or excessive time and memory.

mod changing;
mod entries;
mod limited;
mod properties;
mod size;
