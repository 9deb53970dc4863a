//! The groups of a site, with their settings for HTTP.

use std::sync::Arc;

use weir_conf::Error;

use super::choosing::Choose;
use super::sticky::Sticky;
use crate::site::Site;
use crate::site::main_conf::{BlockEnd, MainDraft, MainKey, Uses};
use weir_upstream::Group;
use weir_upstream::config::servers_file::ServersFile;

use weir_upstream::config::{GroupExtras, GroupUses};
pub use weir_upstream::config::{GroupId, HashKey, QueueSettings};

/// A group, ready to serve.
pub type Upstream = weir_upstream::config::Upstream<Extras>;
/// All groups.
pub type Upstreams = weir_upstream::config::Upstreams<Extras>;
/// All groups while the configuration is read.
pub type Drafts = weir_upstream::config::Drafts<Extras>;
/// The settings of an `upstream { }`.
pub type Block = weir_upstream::config::UpstreamBlock<Extras>;

/// Settings of a group for HTTP.
#[derive(Debug, Default)]
pub struct Extras {
    /// `sticky`: how clients are bound to servers.
    pub sticky: Option<Sticky>,
    /// The script that chooses the server of each attempt.
    pub chooser: Option<Box<dyn Choose>>,
    /// `balancer_keepalive`: the most idle connections of a loop to servers that the script chose.
    pub idle: Option<usize>,
}

impl GroupExtras for Extras {
    const BLOCK: &'static str = "http";

    fn binds(&self) -> bool {
        self.sticky.is_some()
    }

    fn chooses(&self) -> bool {
        self.chooser.is_some()
    }
}

/// The groups of a site.
pub fn of(site: &Site) -> Vec<Arc<Group>> {
    GROUPS.of(&site.main_confs).all().map(|upstream| upstream.group.clone()).collect()
}

/// The groups of a site with a `servers_file`.
pub fn in_files(site: &Site) -> impl Iterator<Item = (Arc<Group>, Arc<ServersFile>)> {
    GROUPS.of(&site.main_confs).in_files()
}

/// The groups of a site.
pub static GROUPS: MainKey<GroupsDraft> = MainKey::new();

/// The groups while the configuration is read.
#[derive(Default)]
pub struct GroupsDraft {
    /// All groups so far.
    pub all: Drafts,
    /// The `upstream { }` that is being read.
    pub block: Option<Block>,
}

impl MainDraft for GroupsDraft {
    type MainConf = Upstreams;

    fn finish(self, end: &mut BlockEnd<'_>) -> Result<Upstreams, Error> {
        let mut all = self.all.finish(end.around, end.zones, end.warnings)?;
        if let Some(before) = end.before {
            all.keep(GROUPS.of(before));
        }
        Ok(all)
    }

    fn number_as(&mut self, before: &Upstreams) {
        self.all.number_as(before);
    }

    fn unused(before: &Upstreams) -> (usize, usize) {
        let places = before.places().count();
        (places - before.all().count(), places)
    }

    fn note(&mut self) {
        self.all.note();
    }

    fn noted(&mut self) -> Option<Uses> {
        Some(Box::new(self.all.noted()))
    }

    fn can_repeat(&self, uses: &Uses) -> bool {
        let uses = uses.downcast_ref::<GroupUses>();
        uses.is_some_and(|uses| uses.is_repeatable() && self.all.can_repeat(uses))
    }
}
