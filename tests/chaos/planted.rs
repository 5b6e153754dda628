//! Placeholder.
use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub struct PlantedReport {
    pub bug: String,
    pub caught: bool,
}

impl PlantedReport {
    pub fn line(&self) -> String {
        format!("{}: {}", self.bug, self.caught)
    }
}
