//! The block that is being read, as a location.

use weir_conf::{Error, Pos};

use crate::config::module::Modules;
use crate::site::location::{Children, Key, Kind, Location, LocationId};
use crate::site::settings::LocationConf;

/// The location that a block becomes: its name, kind, and the locations inside so far.
#[derive(Debug)]
pub struct Place {
    /// As written.
    pub name: Vec<u8>,
    /// The start of the block.
    pub at: Option<Pos>,
    /// How the location is selected.
    pub kind: Kind,
    /// Whether a request for the name without its last slash is redirected.
    pub auto_redirect: bool,
    /// The locations inside, each with an error in case that its name is a duplicate.
    pub inner: Vec<(LocationId, Key, Error)>,
}

impl Place {
    /// A place without locations inside.
    pub fn new(name: &[u8], kind: Kind) -> Self {
        Place { name: name.to_vec(), at: None, kind, auto_redirect: false, inner: Vec::new() }
    }

    /// Makes the location, when its block was read.
    pub fn build(
        self,
        conf: LocationConf,
        modules: &Modules,
        auto: &dyn Fn(LocationId) -> bool,
    ) -> Result<Location, Error> {
        let children = Children::new(self.inner, auto)?;
        Ok(Location {
            name: self.name,
            at: self.at,
            kind: self.kind,
            plan: modules.plan(&conf),
            conf,
            auto_redirect: self.auto_redirect,
            children,
        })
    }
}
