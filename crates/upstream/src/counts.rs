//! The counters of each configured server: one set for each loop, under the names of group and
//! server.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use weir_metrics::subjects::{AllCounted, Cell, Cells, Counted, OTHERS, SubjectKind};
use weir_metrics::{MetricTable, MetricValue, MetricsPage};

use crate::{Group, Peer};

/// So many servers are known at a time. More come only from names that are looked up again and again.
const MOST: usize = 4096;

/// The cells of one loop.
pub struct Counts {
    cells: Rc<Cells>,
    kind: SubjectKind,
    /// Of servers that were asked, by their places in memory, in which they stay as long as they are here.
    known: RefCell<HashMap<*const Peer, CountedPeer>>,
}

/// A server that was asked, and its cell.
type CountedPeer = (Arc<Peer>, Option<Cell>);

impl Counts {
    /// Of the requests or sessions of a loop.
    pub fn new(cells: Rc<Cells>, kind: SubjectKind) -> Counts {
        Counts { cells, kind, known: RefCell::default() }
    }

    /// The cell of a server.
    pub fn of(&self, group: &Group, peer: &Arc<Peer>) -> Option<Cell> {
        let mut known = self.known.borrow_mut();
        if known.len() >= MOST {
            known.clear();
        }
        let fresh = || (peer.clone(), self.cells.of(self.kind, &name(group, peer)));
        known.entry(Arc::as_ptr(peer)).or_insert_with(fresh).1
    }
}

fn name(group: &Group, peer: &Peer) -> String {
    format!("{}\n{}", group.name, peer.name)
}

/// What a page shows of one of them.
type Values = Vec<(&'static str, MetricValue)>;

/// Adds all of them to a page, with what `values` makes of their numbers.
pub fn show<'g>(
    groups: impl Iterator<Item = &'g Arc<Group>>,
    (all, kind): (&AllCounted, SubjectKind),
    now: Instant,
    (table, values): (&'static MetricTable, fn(Counted) -> Values),
    page: &mut MetricsPage,
) {
    for group in groups {
        for seat in group.seats(now) {
            let peer = &seat.peer;
            let mut values = values(all.of(kind, &name(group, peer)));
            values.extend([
                ("name", MetricValue::Word(peer.server.clone())),
                ("backup", MetricValue::Json(peer.options.backup.to_string())),
                ("weight", MetricValue::Number(seat.weight().into())),
                ("state", MetricValue::Word(seat.state(now).to_owned())),
            ]);
            page.add(table, vec![group.name.clone(), peer.name.clone()], values);
        }
    }
    if let Some(counted) = all.others(kind) {
        page.add(table, vec![OTHERS.into(), OTHERS.into()], values(counted));
    }
}
