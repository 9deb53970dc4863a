//! The loops of a configuration, and how they accept.

use std::path::Path;

use weir_conf::{Directive, Pos, Sources};

/// The loops of a configuration, and how they accept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LoopSetup {
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// The resulting policy, by weir's name.
    pub(crate) policy: String,
    /// The directive that chooses it. `None` if it is the default.
    pub(super) chosen_by: Option<PolicyDirective>,
}

/// A directive that chooses the policy.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct PolicyDirective {
    pub(super) words: &'static str,
    at: Pos,
}

impl PolicyDirective {
    /// Its position, with a path relative to the configuration's directory.
    pub(super) fn place(&self, sources: &Sources, conf: &Path) -> String {
        let Some(source) = sources.get(self.at.file) else { return String::new() };
        let dir = conf.parent().unwrap_or(conf);
        let name = source.name.strip_prefix(dir).unwrap_or(&source.name);
        format!("{}:{}", name.display(), self.at.line)
    }
}

/// Reads the loops and the policy: `accept_balance`, or the equivalent directives of nginx. An
/// address with `reuseport` always has a queue per worker.
pub(crate) fn shape(main: &[Directive]) -> LoopSetup {
    let find = |list: &[Directive], name: &str| {
        let found = list.iter().find(|d| d.name.is(name))?;
        Some((found.arg(0)?.lossy().into_owned(), found.end))
    };
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let count = |name: &str| match find(main, name) {
        Some((word, _)) if word == "auto" => cpus,
        Some((number, _)) => number.parse().unwrap_or(1).max(1),
        None => 1,
    };
    let events =
        main.iter().find(|d| d.name.is("events")).map(Directive::block).unwrap_or_default();
    let (policy, chosen_by) = if let Some(at) = reuseport(main) {
        ("reuseport".to_owned(), Some(PolicyDirective { words: "listen ... reuseport", at }))
    } else if let Some((policy, at)) = find(events, "accept_balance") {
        (policy, Some(PolicyDirective { words: "accept_balance", at }))
    } else if let Some((_, at)) = find(events, "accept_mutex").filter(|(word, _)| word == "on") {
        ("mutex".to_owned(), Some(PolicyDirective { words: "accept_mutex on", at }))
    } else {
        ("fair".to_owned(), None)
    };
    LoopSetup {
        processes: count("worker_processes"),
        threads: count("worker_threads"),
        policy,
        chosen_by,
    }
}

/// The first `listen` with `reuseport`, except those for QUIC and UDP.
fn reuseport(list: &[Directive]) -> Option<Pos> {
    list.iter().find_map(|d| {
        if !d.name.is("listen") {
            return reuseport(d.block());
        }
        let has = |text| d.args.iter().any(|word| word.is(text));
        (has("reuseport") && !has("quic") && !has("udp")).then_some(d.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_doctor_reads_the_shape() {
        let read = |text: &str| {
            let tree = weir_conf::read_text(Path::new("/etc/nginx.conf"), text.as_bytes());
            let shape = shape(&tree.main);
            let place = shape
                .chosen_by
                .map(|directive| directive.place(&tree.sources, Path::new("/etc/x")));
            (shape.processes, shape.threads, shape.policy, place.unwrap_or_default())
        };
        for (text, processes, threads, policy, place) in [
            (
                "worker_processes 3; worker_threads 2;\nevents { accept_balance rotate=4; }",
                3,
                2,
                "rotate=4",
                "nginx.conf:2",
            ),
            (
                "worker_processes 4;\n\nhttp { server { listen 80; listen 81 reuseport; } }",
                4,
                1,
                "reuseport",
                "nginx.conf:3",
            ),
            (
                "events { accept_balance fair; } http { server { listen 80 reuseport; } }",
                1,
                1,
                "reuseport",
                "nginx.conf:1",
            ),
            ("http { server { listen 443 quic reuseport; listen 443 ssl; } }", 1, 1, "fair", ""),
            ("events { accept_mutex on; }", 1, 1, "mutex", "nginx.conf:1"),
            ("worker_processes 2; events { accept_mutex off; }", 2, 1, "fair", ""),
        ] {
            let want = (processes, threads, policy.to_owned(), place.to_owned());
            assert_eq!(read(text), want, "{text}");
        }
    }
}
