//! A history, looked at by buyer and by order, as the adapter lets it be compared.

use crate::history::{History, Meaning, Request, Row};
use std::collections::{BTreeMap, HashSet};

/// The adapter reads something else than the server means, or the setup did nothing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// Not a unit was on sale.
    Setup,
    /// Who heard *sold* has nothing, and who was refused has the orders.
    Sales,
    /// Who heard *already ordered* has nothing, and who heard *sold out* has an order.
    Refusals,
    /// Most buyers were told another id than that of their stored order.
    Ids,
    /// The stored orders are those that were acknowledged, under names of nobody who asked.
    Users,
    /// The stored orders have neither a name nor an id that is known.
    Rows,
}

/// A history by user and by order id.
pub(crate) struct View<'a> {
    pub history: &'a History,
    /// By their start.
    pub requests: BTreeMap<&'a str, Vec<&'a Request>>,
    pub rows: BTreeMap<&'a str, Vec<&'a Row>>,
    /// The request that was told of an order, by buyer and id; `None`: an order without id.
    pub acknowledged: BTreeMap<(&'a str, Option<&'a str>), &'a Request>,
    /// With its words.
    pub misfit: Option<(Misfit, String)>,
    /// The ids of answers and those of stored orders are the same ones.
    pub has_ids: bool,
}

impl<'a> View<'a> {
    pub fn with(history: &'a History, misfit: Option<(Misfit, String)>) -> Self {
        let has_ids = !matches!(misfit, Some((Misfit::Ids | Misfit::Rows, _)));
        let (mut by_user, mut rows): (BTreeMap<_, Vec<_>>, BTreeMap<_, Vec<_>>) =
            Default::default();
        let mut acknowledged = BTreeMap::new();
        let mut requests: Vec<&Request> = history.requests.iter().collect();
        requests.sort_by_key(|request| (request.start_us, request.end_us));
        for request in requests {
            by_user.entry(&*request.user).or_default().push(request);
            if request.means == Meaning::Sold {
                let id = (&*request.user, request.order_id.as_deref().filter(|_| has_ids));
                acknowledged.entry(id).or_insert(request);
            }
        }
        // One answer may give the id of an order, and another of the same order none.
        let named = acknowledged.keys().filter(|(_, id)| id.is_some()).map(|(user, _)| *user);
        let named: HashSet<&str> = named.collect();
        acknowledged.retain(|(user, id), _| id.is_some() || !named.contains(user));
        for row in history.stored.iter().flat_map(|stored| &stored.orders) {
            rows.entry(&*row.user).or_default().push(row);
        }
        Self { history, requests: by_user, rows, acknowledged, misfit, has_ids }
    }

    /// The id that this answer gave, if the adapter reads the right one.
    pub fn id_of(&self, request: &'a Request) -> Option<&'a str> {
        request.order_id.as_deref().filter(|_| self.has_ids)
    }

    pub fn stored(&self) -> &'a [Row] {
        match (&self.history.stored, &self.misfit) {
            (None, _) | (_, Some((Misfit::Rows, _))) => &[],
            (Some(stored), _) => &stored.orders,
        }
    }

    /// Orders that are stored or were acknowledged, whichever are more.
    pub fn sold(&self) -> usize {
        self.stored().len().max(self.acknowledged.len())
    }

    pub fn left(&self) -> usize {
        self.history.run.stock.saturating_sub(self.sold())
    }

    pub fn rows_of(&self, user: &str) -> &[&'a Row] {
        self.rows.get(user).map_or(&[], Vec::as_slice)
    }

    pub fn requests_of(&self, user: &str) -> &[&'a Request] {
        self.requests.get(user).map_or(&[], Vec::as_slice)
    }

    /// All requests of these, who asked first before the others.
    pub fn all_of<'u>(&self, users: impl Iterator<Item = &'u str>) -> Vec<&'a Request> {
        let mut users: Vec<_> = users.map(|user| self.requests_of(user)).collect();
        users.sort_by_key(|requests| requests.first().map(|first| first.start_us));
        users.concat()
    }

    pub fn has_nothing(&self, user: &str) -> bool {
        let was_told = |request: &&Request| request.means == Meaning::Sold;
        self.rows_of(user).is_empty() && !self.requests_of(user).iter().any(was_told)
    }
}
