//! The production path in an arena: a schema and a Redis prefix of its own.

use super::arena::Definition;

/// The schema that this arena's orders are in, if its strategy is the production path itself.
pub fn schema_of(_definition: &Definition) -> Option<String> {
    None
}
