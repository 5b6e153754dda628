//! I11: nothing is accepted outside the window of a sale or while it is paused.

use super::*;

/// Clocks of one machine are read at slightly different moments.
const CLOCK_SLACK_MICROS: i64 = 5_000;

pub(super) fn only_while_open(case: &Case, found: &mut Found) {
    let history = &case.evidence.history;
    let pauses = certain_pauses(case);
    for one in history.of_kind(Kind::Buy) {
        // A replay repeats an answer that was given while the sale was open.
        if one.answer != Answer::Accepted {
            continue;
        }
        let Some(sale) = case.sale(one.sale) else { continue };
        if history.wall_clock(one.completed) < sale.opens_at - CLOCK_SLACK_MICROS {
            found.push(format!("{one}, before the sale opened"));
        }
        if history.wall_clock(one.invoked) > sale.closes_at + CLOCK_SLACK_MICROS {
            found.push(format!("{one}, after the sale closed"));
        }
        let inside = |pause: &&Pause| {
            pause.sale == one.sale && pause.from < one.invoked && one.completed < pause.until
        };
        if let Some(pause) = pauses.iter().find(inside) {
            let [from, until] = [pause.from, pause.until].map(|at| at as f64 / 1e6);
            found.push(format!("{one}, while the sale was paused, {from:.3} s to {until:.3} s"));
        }
    }
    for row in &case.evidence.rows {
        let Some(sale) = case.sale_of(row) else { continue };
        if !(sale.opens_at..sale.closes_at).contains(&row.created_at) {
            let opened = row.created_at - sale.opens_at;
            let closed = sale.closes_at - row.created_at;
            found.push(format!(
                "order {} of sale {} ({}) was admitted {opened} us after it opened and {closed} us \
                 before it closed",
                row.id, sale.id, sale.name
            ));
        }
    }
}

/// From the confirmation of a pause to the next attempt to resume the sale was certainly paused.
struct Pause {
    sale: u8,
    from: Micros,
    until: Micros,
}

fn certain_pauses(case: &Case) -> Vec<Pause> {
    let history = &case.evidence.history;
    let resumes: Vec<&Operation> = history.of_kind(Kind::Resume).collect();
    let late = u64::try_from(case.evidence.late_effects.as_micros()).unwrap_or(u64::MAX);
    history
        .of_kind(Kind::Pause)
        .filter(|one| one.answer == Answer::Done)
        .filter_map(|pause| {
            let of_sale = || resumes.iter().filter(|resume| resume.sale == pause.sale);
            // A resume that nobody heard of may still be on its way, and come after the pause.
            let may_still_come = |resume: &&&Operation| {
                let without_end = resume.answer == Answer::Unknown
                    && resume.completed.saturating_add(late) > pause.invoked;
                resume.invoked < pause.completed
                    && (without_end || resume.completed > pause.invoked)
            };
            if of_sale().any(|resume| may_still_come(&resume)) {
                return None;
            }
            let next = of_sale().filter(|resume| resume.invoked >= pause.completed);
            Some(Pause {
                sale: pause.sale,
                from: pause.completed,
                until: next.map(|resume| resume.invoked).min().unwrap_or(Micros::MAX),
            })
        })
        .collect()
}
