//! A hundred storms on each correct server: the judge accuses none of them.

use crate::support::buggy_sale::{BuggySale, Manner};

async fn holds_a_hundred_times(manner: Manner) {
    BuggySale::start(manner).must_hold(100).await;
}

cases! { holds_a_hundred_times:
    right => Manner::Right,
    slow => Manner::Slow,
    often_busy => Manner::Busy,
    stores_later => Manner::StoresLater,
    dies_and_comes_back => Manner::HangsAfterStoring,
}
