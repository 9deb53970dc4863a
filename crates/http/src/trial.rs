//! Reads an `http` block from a text, for unit tests.

use std::path::Path;
use std::sync::Arc;

use weir_log::{Log, OpenLogs};

use crate::{Inputs, Site, configure};

fn inputs<'a>(
    logs: &'a OpenLogs,
    error_log: &'a Arc<Log>,
    (zones, sources): (&'a weir_zone::Declarations, &'a weir_conf::Sources),
) -> Inputs<'a> {
    let root = Path::new("/nowhere");
    let access_log = Path::new("/dev/null");
    let pools = &["pool"];
    let temporary = root;
    let conf_prefix = root;
    Inputs {
        configured: "",
        prefix: root,
        conf_prefix,
        logs,
        access_log,
        temporary,
        error_log,
        zones,
        pools,
        sources,
        sessions: None,
        before: None,
        known: None,
    }
}

/// The site of this `http` block, or the message of the error.
pub fn site(http: &str) -> Result<Site, String> {
    let text = format!("events {{ }}\nhttp {{\n{http}\n}}\n");
    let tree = weir_conf::read_text(Path::new("trial.conf"), text.as_bytes());
    if let Some(broken) = tree.broken {
        return Err(broken.message);
    }
    let block = tree.main.iter().find(|d| d.name.is("http")).ok_or("no http block")?;
    let (logs, log) = (OpenLogs::new(), Arc::new(Log::new(Vec::new())));
    let zones = weir_zone::Declarations::default();
    let sources = tree.sources.clone();
    configure(block, inputs(&logs, &log, (&zones, &sources)), &mut Vec::new())
        .map_err(|error| error.message)
}

/// The error message of a location with these directives. Empty if there is none.
pub fn complaint(location: &str) -> String {
    match site(&format!("server {{ location / {{ {location} }} }}")) {
        Ok(_) => String::new(),
        Err(text) => text,
    }
}
