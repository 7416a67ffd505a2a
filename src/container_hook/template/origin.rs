//! Where the values of a merged pod came from.

use crate::yaml::Position;

/// Where a value came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The hook makes it so, whatever the request.
    Default,
    Request,
    /// The pod that the caller gave.
    Given,
    Template(Position),
}

impl Origin {
    /// Returns the place in the template.
    pub fn position(self) -> Option<Position> {
        match self {
            Origin::Template(position) => Some(position),
            _ => None,
        }
    }
}
