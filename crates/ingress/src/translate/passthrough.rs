//! Hosts whose TLS ends behind weir: `ssl-passthrough`. The ports of TLS belong to `stream`, which reads the name in the
//! handshake. A connection for such a host goes to its Service as it is; all others are handed to the servers of `http`.

use weir_conf::Directive;

use super::hosts::Host;
use super::lines::line;
use super::rules::root;
use super::work::{Base, Work};
use crate::report::Severity;
use crate::settings::Settings;

/// A group without a server: connections end at once.
const CLOSED: &str = "passthrough__closed";

/// Where the servers of `http` get connections of TLS then.
pub(super) fn inner(settings: &Settings) -> String {
    format!("unix:{}", settings.state.join("ingress-https.sock").display())
}

/// Whether it is the name of one host. A pattern would take connections for names that have a server of their own in `http`.
fn is_one(name: &str) -> bool {
    !name.is_empty() && !name.starts_with("*.")
}

/// Whether names are read before TLS. The PROXY protocol comes before the handshake, and is read by `http` alone.
pub(super) fn is_on(base: &Base) -> bool {
    base.settings.passthrough && !base.proxy_protocol && !base.settings.https.is_empty()
}

impl Work<'_> {
    /// The server of a host at the ports of TLS; and what is to be said where the host asks for what it does not get.
    pub(super) fn front(&mut self, host: &Host) -> Vec<Directive> {
        let on = is_on(self.base);
        let mut servers = Vec::new();
        let asking = host.sources.iter().filter(|source| source.options.passthrough);
        for source in asking {
            let why = match on {
                true if !is_one(&host.name) => "it needs the name of one host",
                true if source.id != host.owner.id => {
                    "only the oldest Ingress of a host can ask for it"
                }
                true => continue,
                false if self.settings.passthrough => "the PROXY protocol leaves no room for it",
                false => "the controller runs without --enable-ssl-passthrough",
            };
            let why = format!("{why}; weir ends TLS itself");
            self.say(&source.id, Severity::Warning, "NoPassthrough", "ssl-passthrough", &why);
        }
        if on && is_one(&host.name) && host.owner.options.passthrough {
            let mut server = self.passed(host);
            self.owners.mark(&host.owner.id, std::slice::from_mut(&mut server));
            servers.push(server);
        }
        servers
    }

    /// The Service of the path `/` has the connections; other paths are inside of TLS.
    fn passed(&mut self, host: &Host) -> Directive {
        let root = host.routes.get(&root());
        let backend = root.and_then(|route| route.backend.clone());
        let namespace = &host.owner.id.namespace;
        let group = match &backend {
            Some((service, port)) => self.stream_group((namespace, service, port)),
            None => Err("the host has no Service at the path /".to_owned()),
        };
        let group = group.unwrap_or_else(|why| {
            let why = format!("{why}; connections of TLS are closed");
            self.say(&host.owner.id, Severity::Error, "NoService", "ssl-passthrough", &why);
            let block = vec![line("server", ["127.0.0.1:9", "down"])];
            let made = line("upstream", [CLOSED]).with_block(block);
            self.streams.insert(CLOSED.to_owned(), vec![made]);
            CLOSED.to_owned()
        });
        let names: Vec<&str> = host.names().filter(|name| is_one(name)).collect();
        let then = line("proxy_pass", [group.as_str()]);
        reads_names(self.settings, &[], &names, then)
    }
}

/// The server of the ports of TLS for all other names.
pub(super) fn others(base: &Base) -> Option<Directive> {
    let all = || line("pass", [inner(&base.settings).as_str()]);
    is_on(base).then(|| reads_names(&base.settings, &["default_server"], &["_"], all()))
}

fn reads_names(settings: &Settings, more: &[&str], names: &[&str], then: Directive) -> Directive {
    let listen = |address: &String| {
        line("listen", std::iter::once(address.as_str()).chain(more.iter().copied()))
    };
    let mut list: Vec<Directive> = settings.https.iter().map(listen).collect();
    list.push(line("server_name", names.iter().copied()));
    list.push(line("ssl_preread", ["on"]));
    list.push(then);
    line("server", []).with_block(list)
}
