//! A hundred storms on each correct server: the judge accuses none of them.

use crate::support::buggy_sale::{BuggySale, Manner};
use futures_util::future::join_all;

async fn holds_a_hundred_times(manner: Manner) {
    // Most of a storm is waiting.
    join_all((0..10).map(|_| async move { BuggySale::start(manner).must_hold(10).await })).await;
}

cases! { holds_a_hundred_times:
    right => Manner::Right,
    slow => Manner::Slow,
    often_busy => Manner::Busy,
    stores_later => Manner::StoresLater,
    knows_no_key => Manner::KnowsNoKey,
    dies_and_comes_back => Manner::HangsAfterStoring,
    takes_back => Manner::TakesBack,
    breaks_off => Manner::BreaksOff,
}
