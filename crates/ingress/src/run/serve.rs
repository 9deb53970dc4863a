//! Objects to weir: waits for changes, translates, hands over, and leaves out what weir refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::cluster::lock;
use super::door::{Door, FIGURES, SERVED, Verdict};
use super::files::Files;
use super::map::RefusedKeys;
use super::refusals::{AGAIN, Refusals};
use super::shared::{Options, Publish, Report, Shared, say};
use super::status;
use crate::gateway::{Statuses, addresses};
use crate::report::{Finding, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::translate::{ConfigText, Memory, ServerGroup, Translation, line};

/// How often weir is asked which configuration it serves: one that was started anew serves another.
const LOOK: Duration = Duration::from_secs(1);
/// Waits after a failure, the first and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The longest time for which changes are collected because translations take long.
const LONGEST_COLLECT: Duration = Duration::from_millis(500);
/// The share of that time in a round: three quarters of a busy processor are for translations, the rest is not.
const COLLECT_SHARE: u32 = 4;

/// For so long, the object that weir refuses is looked for: a pod is not ready meanwhile, and changes wait.
const LONGEST_SEARCH: Duration = Duration::from_secs(30);

/// What keeps this program from being ready where a key of the map does.
const OF_MAP: &str = "ConfigMap of the controller";

/// A configuration on its way.
struct Offer {
    made: Translation,
    /// The name of its text, which the text says itself.
    digest: String,
    /// The controller's ConfigMap, without what weir refuses of it.
    map: BTreeMap<String, String>,
}

struct Server {
    options: Options,
    shared: Arc<Shared>,
    door: Door,
    files: Files,
    refusals: Refusals,
    /// The statuses of the configuration that weir serves.
    statuses: Option<Arc<Statuses>>,
    in_use: BTreeSet<PathBuf>,
    /// The addresses of Gateways, also of those whose status does not have them yet.
    addresses: BTreeMap<(String, String), Vec<String>>,
    /// The digest that weir is known to serve.
    served: Option<String>,
    /// What weir has taken last: it has these parts.
    handed: Option<ConfigText>,
    /// What could not be handed over was said.
    complained: bool,
    /// What the last translation has made.
    memory: Memory,
    /// What weir refuses of the controller's ConfigMap.
    keys: RefusedKeys,
    /// What was said of it in the log.
    said: BTreeSet<Finding>,
}

/// How a round has ended.
enum Round {
    Done,
    /// weir refuses it, and no object can be left out.
    Stuck,
    Again,
}

/// Keeps weir at what the cluster says, for ever.
pub async fn serve(options: Options, shared: Arc<Shared>) {
    let mut server = Server {
        door: Door { socket: options.door.clone() },
        files: Files::new(&options.settings.state, Instant::now()),
        options,
        shared,
        refusals: Refusals::default(),
        statuses: None,
        in_use: BTreeSet::new(),
        addresses: BTreeMap::new(),
        served: None,
        handed: None,
        complained: false,
        memory: Memory::default(),
        keys: RefusedKeys::default(),
        said: BTreeSet::new(),
    };
    let (mut wait, mut cost) = (FIRST_WAIT, Duration::ZERO);
    server.shared.cluster.changed.notified().await;
    loop {
        // Bounded: the first change sets the time, later ones do not move it.
        sleep(server.options.collect.max((cost / COLLECT_SHARE).min(LONGEST_COLLECT))).await;
        let begin = Instant::now();
        let round = server.round().await;
        cost = begin.elapsed();
        match round {
            Round::Done => {
                wait = FIRST_WAIT;
                server.rest(None).await;
            }
            Round::Stuck => server.rest(Some(AGAIN)).await,
            Round::Again => {
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

impl Server {
    /// Until there is something to do.
    async fn rest(&mut self, longest: Option<Duration>) {
        let begin = Instant::now();
        loop {
            let changed = self.shared.cluster.changed.notified();
            if timeout(LOOK, changed).await.is_ok() {
                return;
            }
            let now = Instant::now();
            self.files.sweep(&self.in_use, now);
            let due = self.refusals.is_due(now) || self.keys.is_due(now);
            if due || longest.is_some_and(|longest| begin.elapsed() > longest) {
                self.refusals.forget_old(now);
                self.keys.forget_old(now);
                return;
            }
            if let Ok(digest) = self.door.served().await
                && self.served.as_ref().is_some_and(|served| *served != digest)
            {
                say("notice", "weir serves another configuration: it was started anew");
                self.served = None;
                return;
            }
        }
    }

    /// Brings weir to the objects as they are now.
    async fn round(&mut self) -> Round {
        // Before the objects are looked at: a change in between is looked at once more.
        let changes = self.shared.counters.changes.get();
        let Some(snapshot) = self.shared.cluster.snapshot() else { return Round::Done };
        self.shared.counters.objects.set(snapshot.ingresses.len());
        if self.served.is_none() {
            self.served = self.door.served().await.ok();
        }
        let before = self.refusals.ids();
        self.refusals.end_search();
        let all = snapshot;
        let begin = Instant::now();
        loop {
            let (snapshot, findings) = self.refusals.apply(all.clone());
            let kept = snapshot.clone();
            let Some(mut offer) = self.offer(snapshot).await else { return Round::Stuck };
            offer.made.findings.extend(findings);
            if self.keys.judge(&offer.map, &offer.made.findings) {
                continue;
            }
            self.findings_of_map(&mut offer);
            if self.keys.held().is_some() {
                return self.hold(&offer);
            }
            lock(&self.shared.obstacles).remove(OF_MAP);
            if self.served.as_ref() == Some(&offer.digest) {
                // A group without servers is in no configuration. It must be known all the same, so that its first pod is seen.
                if let Err(error) = self.adopt(&offer.made.groups) {
                    self.complain(&format!("{}: {error}", self.options.settings.state.display()));
                    return Round::Again;
                }
                if self.keys.taken(&offer.map) || self.refusals.go_on() {
                    continue;
                }
                self.done(&kept, offer, changes);
                return Round::Done;
            }
            let parts = match offer.made.text.parts(self.handed.as_ref()) {
                Ok(parts) => parts,
                Err(error) => {
                    self.complain(&error.to_string());
                    return Round::Stuck;
                }
            };
            let written = self.files.write(&offer.made.files, Instant::now());
            let written = written.and_then(|()| self.adopt(&offer.made.groups));
            if let Err(error) = written {
                self.complain(&format!("{}: {error}", self.options.settings.state.display()));
                return Round::Again;
            }
            match self.door.put(parts).await {
                Verdict::Lacks(_) if self.handed.is_some() => self.handed = None,
                Verdict::Taken(by) => {
                    self.shared.counters.taken.add();
                    self.shared.counters.last_taken(&offer.digest);
                    if std::mem::take(&mut self.complained) {
                        say("notice", format_args!("weir has the configuration, taken by {by}"));
                    }
                    let tried = self.keys.taken(&offer.map);
                    if tried || self.refusals.searches() {
                        self.taken(&kept, &mut offer);
                        self.refusals.go_on();
                        continue;
                    }
                    self.done(&kept, offer, changes);
                    return Round::Done;
                }
                Verdict::Later(why) | Verdict::Lacks(why) => {
                    self.served = None;
                    self.refusals.end_search();
                    self.complain(&why);
                    return Round::Again;
                }
                Verdict::Refused(place, why) => {
                    self.shared.counters.refused.add();
                    let owner =
                        place.and_then(|(part, line)| offer.made.text.owner_in(&part, line));
                    if self.keys.blame(&offer.map, owner, &why) {
                        continue;
                    }
                    let statuses = &offer.made.statuses;
                    // What weir serves came from this program before it was started anew. Without knowing of which objects,
                    // nothing of that is taken away.
                    let unknown = !self.refusals.knows_good()
                        && self.served.as_ref().is_some_and(|served| !served.is_empty());
                    if owner.is_none() && unknown {
                        self.shared.counters.ready.store(true, Ordering::Relaxed);
                        self.complain(&format!("weir keeps what it serves: {why}"));
                        self.tell(&offer.made);
                        return Round::Stuck;
                    }
                    let left_out = match begin.elapsed() > LONGEST_SEARCH {
                        true => self.refusals.give_up(&all, &why),
                        false => self.refusals.leave_out(&kept, statuses, owner, &why),
                    };
                    if !left_out {
                        self.refusals.end_search();
                        // What was left out on suspicion was not the reason.
                        self.refusals.only(&before);
                        if self.keys.blame_snippets(&offer.map, &why) {
                            self.findings_of_map(&mut offer);
                            return self.hold(&offer);
                        }
                        self.complain(&format!("weir keeps what it serves: {why}"));
                        self.tell(&offer.made);
                        return Round::Stuck;
                    }
                }
            }
        }
    }

    fn findings_of_map(&self, offer: &mut Offer) {
        if let Some(map) = &self.options.config_map {
            offer.made.findings.extend(self.keys.findings(map));
        }
    }

    /// Changes nothing, since a key of the map that may keep clients out cannot be served.
    fn hold(&mut self, offer: &Offer) -> Round {
        let Some((key, why)) = self.keys.held() else { return Round::Stuck };
        let text = format!("{key} is refused: {why}");
        lock(&self.shared.obstacles).insert(OF_MAP.to_owned(), text);
        if self.served.as_ref().is_some_and(|served| !served.is_empty()) {
            // An earlier process has handed it over. Its pods come and go.
            if let Err(error) = self.adopt(&offer.made.groups) {
                self.complain(&format!("{}: {error}", self.options.settings.state.display()));
                return Round::Again;
            }
            self.shared.counters.ready.store(true, Ordering::Relaxed);
        }
        self.complain(&format!("nothing changes until the {OF_MAP} is right"));
        self.tell(&offer.made);
        Round::Stuck
    }

    /// Writes the files of these groups' servers, as far as they are not there.
    fn adopt(&self, groups: &BTreeMap<String, ServerGroup>) -> io::Result<()> {
        let slices = lock(&self.shared.cluster.slices);
        let mut servers = lock(&self.shared.servers);
        // What the pods were when the translation began may be old.
        if servers.adopt(groups, &slices, &self.shared.counters)? {
            self.shared.cluster.changed.notify_one();
        }
        Ok(())
    }

    fn complain(&mut self, why: &str) {
        self.shared.counters.failures.add();
        self.shared.counters.last_is_taken.store(false, Ordering::Relaxed);
        if !std::mem::replace(&mut self.complained, true) {
            say("error", why);
        }
    }

    /// All workers serve what these objects say.
    fn taken(&mut self, snapshot: &Snapshot, offer: &mut Offer) {
        self.served = Some(std::mem::take(&mut offer.digest));
        self.handed = Some(std::mem::take(&mut offer.made.text));
        self.in_use = offer.made.files.keys().cloned().collect();
        lock(&self.shared.servers).keep_only(&offer.made.groups);
        self.refusals.taken(snapshot);
    }

    /// The same, `changes` changes after the start: nothing is left to offer.
    fn done(&mut self, snapshot: &Snapshot, mut offer: Offer, changes: u64) {
        self.shared.counters.last_is_taken.store(true, Ordering::Relaxed);
        self.shared.counters.changes_served.store(changes, Ordering::Relaxed);
        self.shared.counters.ready.store(true, Ordering::Relaxed);
        self.taken(snapshot, &mut offer);
        let mut statuses = std::mem::take(&mut offer.made.statuses);
        self.refusals.report(&mut statuses);
        self.statuses = Some(Arc::new(statuses));
        self.tell(&offer.made);
    }

    /// Passes findings on. What is wrong with the ConfigMap is for the administrator, who reads the log.
    fn tell(&mut self, made: &Translation) {
        let of_map = made.findings.iter();
        let of_map = of_map.filter(|f| f.object.kind == "ConfigMap" && f.severity > Severity::Note);
        let of_map: BTreeSet<Finding> = of_map.cloned().collect();
        for Finding { object, severity, about, message, .. } in of_map.difference(&self.said) {
            let level = if *severity == Severity::Error { "error" } else { "warn" };
            say(level, format_args!("{object}: {about}: {message}"));
        }
        self.said = of_map;
        let (findings, served) = (made.findings.clone(), made.served.clone());
        let report = Report { findings, served, statuses: self.statuses.clone() };
        self.shared.counters.findings(&report.findings);
        self.shared.report.send_replace(Arc::new(report));
    }

    /// The configuration for these objects; `None`: there is none, which was said.
    async fn offer(&mut self, mut snapshot: Snapshot) -> Option<Offer> {
        for (key, list) in &self.addresses {
            snapshot.gateway.assigned.entry(key.clone()).or_insert_with(|| list.clone());
        }
        let mut settings = settings(&self.options, &snapshot);
        self.keys.apply(&mut settings.defaults);
        let map = settings.defaults.clone();
        self.addresses.clone_from(&settings.addresses_of);
        let socket = format!("unix:{}", self.options.door.display());
        let mut memory = std::mem::take(&mut self.memory);
        let made = tokio::task::spawn_blocking(move || {
            let mut made = crate::translate_next(&mut memory, &snapshot, &settings);
            let digest = mark(&mut made.text, &socket);
            (memory, Offer { made, digest, map })
        });
        match made.await {
            Ok((memory, offer)) => {
                self.memory = memory;
                Some(offer)
            }
            Err(error) => {
                self.complain(&error.to_string());
                None
            }
        }
    }
}

/// The settings with the defaults of the controller's ConfigMap.
pub(super) fn settings(options: &Options, snapshot: &Snapshot) -> Settings {
    let mut settings = options.settings.clone();
    settings.config_map.clone_from(&options.config_map);
    if let Some((namespace, name)) = &options.config_map {
        let found = snapshot.config_map(namespace, name);
        settings.defaults = found.and_then(|map| map.data.clone()).unwrap_or_default();
    }
    let published = status::published(&options.publish, |namespace, name| {
        let mut all = snapshot.services.iter();
        all.find(|service| {
            service.metadata.name.as_deref() == Some(name)
                && service.metadata.namespace.as_deref() == Some(namespace)
        })
        .cloned()
    });
    settings.published = published.unwrap_or_default();
    match options.publish {
        Publish::Nothing => settings.published.extend(options.pod_address.clone()),
        _ => settings.awaits_address = settings.published.is_empty(),
    }
    if !settings.gateway_ranges.is_empty() {
        settings.addresses_of = addresses::assign(snapshot, &settings);
        // A Gateway that has none yet must not listen everywhere.
        settings.gateway_addresses.clear();
    }
    settings
}

/// Lets weir say which configuration it serves, by its digest, and what it counts.
fn mark(text: &mut ConfigText, socket: &str) -> String {
    let digest = text.digest();
    let silent = || line("access_log", ["off"]);
    let figures = line("location", ["=", FIGURES])
        .with_block(vec![silent(), line("weir_status", ["prometheus"])]);
    let answer =
        line("location", ["/"]).with_block(vec![silent(), line("return", ["200", &digest])]);
    let names = [line("listen", [socket]), line("server_name", [SERVED])];
    text.add_server(names.into_iter().chain([figures, answer]).collect());
    digest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_says_its_digest_itself() {
        let mut made = crate::translate(&Snapshot::default(), &Settings::default());
        let plain = made.text.print().unwrap();
        let digest = mark(&mut made.text, "unix:/run/weir.sock");
        let text = String::from_utf8(made.text.print().unwrap()).unwrap();
        assert!(text.contains(&format!("return 200 {digest};")), "{text}");
        // The server stands in http, behind all others.
        assert!(text.ends_with("        }\n    }\n}\n"), "{text}");
        assert!(text.as_bytes().starts_with(&plain[..plain.len() - "}\n".len()]));
    }
}
