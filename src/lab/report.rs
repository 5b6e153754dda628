//! Verdicts as a page that stands by itself.

use super::{Strategy, strategy::Language, verdict::Verdict};

/// One page about these verdicts.
pub fn page(verdicts: &[(&'static Strategy, Verdict)], _language: Language) -> String {
    let rows: String = verdicts
        .iter()
        .map(|(strategy, verdict)| {
            format!(
                "<tr><td>{}<td>{}<td>{}",
                strategy.id, verdict.sold, verdict.oversold
            )
        })
        .collect();
    format!("<!doctype html><meta charset=utf-8><title>flash-sale lab</title><table>{rows}</table>")
}
