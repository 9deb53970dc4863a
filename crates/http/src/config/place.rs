//! The block that is being read, as the location that it becomes.

use weir_conf::{Error, Pos};

use crate::config::module::Modules;
use crate::site::location::{Children, Key, Kind, Location, LocationId};
use crate::site::settings::LocationConf;

/// The block that a scope becomes: its name, kind, and the locations read inside it so far.
#[derive(Debug)]
pub struct Place {
    /// As written.
    pub name: Vec<u8>,
    /// Where its block begins.
    pub at: Option<Pos>,
    /// What selects it.
    pub kind: Kind,
    /// Set by handlers that want the slash added.
    pub auto_redirect: bool,
    /// Locations inside, each with what to say if another one has its name.
    pub inner: Vec<(LocationId, Key, Error)>,
}

impl Place {
    /// A place without locations in it yet.
    pub fn new(name: &[u8], kind: Kind) -> Self {
        Place { name: name.to_vec(), at: None, kind, auto_redirect: false, inner: Vec::new() }
    }

    /// The location, when its block was read.
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
