//! Whether a draw is fair: rank correlation, and chi-square; one false alarm in two million.

const TENTHS: usize = 10;
/// One in two million of a normal distribution lies further out: on one side, on both together.
const ONE_SIDE: f64 = 4.892;
const TWO_SIDES: f64 = 5.027;

/// What is unfair; `places[i]` is the place of arrival number `i`, both from 0.
pub fn unfairness(openings: &[Vec<u64>]) -> Option<String> {
    let deviations: f64 = openings.iter().map(|places| correlation(places)).sum();
    let deviations = deviations / (openings.len() as f64).sqrt();
    if deviations.abs() > TWO_SIDES {
        return Some(format!("arrival and place correlate: {deviations:.1} deviations"));
    }
    let freedom = ((TENTHS - 1) * (TENTHS - 1) * openings.len()) as f64;
    let found: f64 = openings.iter().map(|places| chi_square(places)).sum();
    let most = quantile(freedom);
    (found > most)
        .then(|| format!("tenths of arrivals differ: chi-square {found:.0}, at most {most:.0}"))
}

/// Spearman's correlation of arrival and place, in standard deviations of a fair draw.
fn correlation(places: &[u64]) -> f64 {
    let people = places.len() as f64;
    let distances = places.iter().enumerate().map(|(arrival, place)| {
        let distance = arrival as f64 - *place as f64;
        distance * distance
    });
    let rho = 1.0 - 6.0 * distances.sum::<f64>() / (people * (people * people - 1.0));
    rho * (people - 1.0).sqrt()
}

fn chi_square(places: &[u64]) -> f64 {
    let people = places.len();
    let mut table = [[0f64; TENTHS]; TENTHS];
    for (arrival, place) in places.iter().enumerate() {
        let place = usize::try_from(*place).expect("a place");
        table[arrival * TENTHS / people][place * TENTHS / people] += 1.0;
    }
    let expected = people as f64 / (TENTHS * TENTHS) as f64;
    let sum: f64 = table.iter().flatten().map(|seen| (seen - expected).powi(2) / expected).sum();
    // Rows and columns are both fixed: without this the statistic were a little too large.
    sum * (people as f64 - 1.0) / people as f64
}

/// What chi-square exceeds once in two million (Wilson and Hilferty's approximation).
fn quantile(freedom: f64) -> f64 {
    let spread = 2.0 / (9.0 * freedom);
    freedom * (1.0 - spread + ONE_SIDE * spread.sqrt()).powi(3)
}

mod tests {
    use super::*;
    use crate::support::random::Random;

    fn shuffled(people: usize, random: &mut Random) -> Vec<u64> {
        let mut places: Vec<u64> = (0..people as u64).collect();
        for last in (1..people).rev() {
            places.swap(last, random.index(last + 1));
        }
        places
    }

    #[test]
    fn a_fair_draw_passes() {
        let mut random = Random::new(1);
        for _ in 0..50 {
            let openings: Vec<_> = (0..4).map(|_| shuffled(2_000, &mut random)).collect();
            assert_eq!(unfairness(&openings), None);
        }
    }

    #[test]
    fn first_come_first_drawn_is_found() {
        assert!(unfairness(&[(0..2_000).collect()]).is_some());
        assert!(unfairness(&[(0..2_000).rev().collect()]).is_some());
    }

    /// One in three of these arrivals swaps with somebody of the first tenth of the places.
    fn favoured(arrivals: std::ops::Range<usize>, seed: u64) -> Vec<Vec<u64>> {
        let mut random = Random::new(seed);
        let opening = |_| {
            let mut places = shuffled(2_000, &mut random);
            for arrival in arrivals.clone() {
                if random.chance(1.0 / 3.0) {
                    let wanted = random.below(200);
                    let holder = places.iter().position(|place| *place == wanted);
                    places.swap(arrival, holder.expect("somebody has it"));
                }
            }
            places
        };
        (0..4).map(opening).collect()
    }

    #[test]
    fn a_small_advantage_is_found() {
        assert!(unfairness(&favoured(0..200, 2)).is_some());
        // Of the middle: hardly a correlation, but tenths that stand out.
        assert!(unfairness(&favoured(900..1_100, 3)).is_some());
    }
}
