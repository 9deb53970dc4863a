//! Keeps weir's configuration up to date: waits for changes, translates the objects, sends the text
//! to weir, and leaves out what weir refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::time::{sleep, timeout};

use super::cluster::lock;
use super::files::Files;
use super::refusals::{OFFER_AGAIN, Refusals};
use super::refused_keys::RefusedKeys;
use super::shared::{Options, Publish, Report, Shared, say};
use super::status;
use super::weir_api::{INTERNAL_HOST, METRICS_PATH, Verdict, WeirApi};
use crate::gateway::{Statuses, addresses, services};
use crate::report::{Finding, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::translate::{ConfigText, Memory, ServerGroup, Translation, Unprintable, line};

/// How often weir is asked which configuration it serves. A weir that was restarted serves its
/// first one.
const POLL: Duration = Duration::from_secs(1);
/// The waits before a failed round is repeated: the first and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The most that a slow translation lengthens the collecting of changes.
const LONGEST_COLLECT: Duration = Duration::from_millis(500);
/// Changes are collected for a quarter of the last round's duration, so that rounds leave a fifth
/// of the time idle.
const COLLECT_SHARE: u32 = 4;

/// How long refused objects are left out one by one, and how long they are looked for in groups.
/// Meanwhile changes wait, and a pod that starts is not ready.
const LONGEST_ONE_BY_ONE: Duration = Duration::from_secs(30);
const LONGEST_IN_GROUPS: Duration = Duration::from_secs(15);

/// The entry of [`Shared::obstacles`] for a refused key of the ConfigMap.
const CONFIG_MAP_OBSTACLE: &str = "ConfigMap of the controller";

/// A configuration to send to weir.
struct Offer {
    made: Translation,
    /// The digest of its text. The text contains it, so that weir can be asked what it serves.
    digest: String,
    /// The controller's ConfigMap without the refused keys.
    map: BTreeMap<String, String>,
}

/// The search of a round for what weir refuses.
struct Search {
    /// All objects of the cluster.
    all: Snapshot,
    /// The objects that were refused before the round.
    before: Vec<ObjectId>,
    /// When the round began, or the search in groups.
    begin: Instant,
}

struct Server {
    options: Options,
    shared: Arc<Shared>,
    weir: WeirApi,
    files: Files,
    refusals: Refusals,
    /// The statuses of the configuration that weir serves.
    statuses: Option<Arc<Statuses>>,
    /// The files that the served configuration names.
    in_use: BTreeSet<PathBuf>,
    /// The addresses assigned to Gateways. The status of a Gateway may lack its address yet.
    addresses: BTreeMap<(String, String), Vec<String>>,
    /// The digest of the configuration that weir is known to serve.
    served: Option<String>,
    /// The last configuration that weir accepted. weir has its parts, so that they need not be sent
    /// again.
    last_accepted: Option<ConfigText>,
    /// Whether the present failure was logged.
    failure_logged: bool,
    /// What the last translation made, for reuse by the next.
    memory: Memory,
    /// The refused keys of the controller's ConfigMap.
    keys: RefusedKeys,
    /// The findings about the ConfigMap that were logged.
    logged: BTreeSet<Finding>,
}

/// The outcome of a round.
enum Round {
    Done,
    /// weir refuses the configuration, and there is no object left to leave out.
    Stuck,
    Retry,
}

/// Keeps weir's configuration up to date, forever.
pub async fn serve(options: Options, shared: Arc<Shared>) {
    let mut server = Server {
        weir: WeirApi { socket: options.weir_socket.clone() },
        files: Files::new(&options.settings.state, Instant::now()),
        options,
        shared,
        refusals: Refusals::default(),
        statuses: None,
        in_use: BTreeSet::new(),
        addresses: BTreeMap::new(),
        served: None,
        last_accepted: None,
        failure_logged: false,
        memory: Memory::default(),
        keys: RefusedKeys::default(),
        logged: BTreeSet::new(),
    };
    let (mut wait, mut cost) = (FIRST_WAIT, Duration::ZERO);
    server.shared.cluster.changed.notified().await;
    loop {
        // The first change sets the end of the wait. Later changes do not move it.
        sleep(server.options.collect.max((cost / COLLECT_SHARE).min(LONGEST_COLLECT))).await;
        let begin = Instant::now();
        let round = server.round().await;
        cost = begin.elapsed();
        match round {
            Round::Done => {
                wait = FIRST_WAIT;
                server.wait_for_work(None).await;
            }
            Round::Stuck => server.wait_for_work(Some(OFFER_AGAIN)).await,
            Round::Retry => {
                sleep(wait).await;
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

impl Server {
    /// Waits until there is something to do, at most `longest`.
    async fn wait_for_work(&mut self, longest: Option<Duration>) {
        let begin = Instant::now();
        loop {
            let changed = self.shared.cluster.changed.notified();
            if timeout(POLL, changed).await.is_ok() {
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
            if let Ok(digest) = self.weir.served().await
                && self.served.as_ref().is_some_and(|served| *served != digest)
            {
                say("notice", "weir serves another configuration: it was started anew");
                self.served = None;
                return;
            }
        }
    }

    /// Translates the present objects and sends them to weir until weir serves them. Repeats with
    /// fewer objects while weir refuses some.
    async fn round(&mut self) -> Round {
        // Read before the snapshot: a change between the two is counted as waiting, and gets
        // another round.
        let changes = self.shared.counters.changes.get();
        let Some(snapshot) = self.shared.cluster.snapshot() else { return Round::Done };
        self.shared.counters.objects.set(snapshot.ingresses.len());
        if self.served.is_none() {
            self.served = self.weir.served().await.ok();
        }
        self.refusals.end_search();
        let mut search =
            Search { all: snapshot, before: self.refusals.ids(), begin: Instant::now() };
        loop {
            let (snapshot, findings) = self.refusals.apply(search.all.clone());
            let kept = snapshot.clone();
            let Some(mut offer) = self.offer(snapshot).await else { return Round::Stuck };
            offer.made.findings.extend(findings);
            if self.keys.judge(&offer.map, &offer.made.findings) {
                continue;
            }
            self.findings_of_map(&mut offer);
            if self.keys.blocking().is_some() {
                return self.keep_serving(&offer);
            }
            lock(&self.shared.obstacles).remove(CONFIG_MAP_OBSTACLE);
            if self.served.as_ref() == Some(&offer.digest) {
                // A group without servers is in no configuration. It is adopted, so that its first
                // pod is noticed.
                if let Err(error) = self.adopt(&offer.made.groups) {
                    self.log_failure(&format!(
                        "{}: {error}",
                        self.options.settings.state.display()
                    ));
                    return Round::Retry;
                }
                if self.keys.taken(&offer.map) || self.refusals.offer_next() {
                    continue;
                }
                self.done(&kept, offer, changes);
                return Round::Done;
            }
            let parts = match offer.made.text.parts(self.last_accepted.as_ref()) {
                Ok(parts) => parts,
                // weir would refuse the directive, too.
                Err(Unprintable { why, owner }) => {
                    let why = why.to_string();
                    match self.refused(&mut search, &kept, offer, (owner.as_deref(), &why)) {
                        Some(round) => return round,
                        None => continue,
                    }
                }
            };
            let written = self.files.write(&offer.made.files, &self.in_use, Instant::now());
            let written = written.and_then(|()| self.adopt(&offer.made.groups));
            if let Err(error) = written {
                self.log_failure(&format!("{}: {error}", self.options.settings.state.display()));
                return Round::Retry;
            }
            match self.weir.put(parts).await {
                Verdict::Lacks(_) if self.last_accepted.is_some() => self.last_accepted = None,
                Verdict::Taken(by) => {
                    self.shared.counters.taken.add();
                    self.shared.counters.last_taken(&offer.digest);
                    if std::mem::take(&mut self.failure_logged) {
                        say("notice", format_args!("weir has the configuration, taken by {by}"));
                    }
                    let tried = self.keys.taken(&offer.map);
                    if tried || self.refusals.searches() {
                        self.record_accepted(&kept, &mut offer);
                        self.refusals.offer_next();
                        continue;
                    }
                    self.done(&kept, offer, changes);
                    return Round::Done;
                }
                Verdict::Later(why) | Verdict::Lacks(why) => {
                    self.served = None;
                    self.refusals.end_search();
                    self.log_failure(&why);
                    return Round::Retry;
                }
                Verdict::Refused(place, why) => {
                    let owner =
                        place.and_then(|(part, line)| offer.made.text.owner_in(&part, line));
                    let owner = owner.cloned();
                    if let Some(round) =
                        self.refused(&mut search, &kept, offer, (owner.as_ref(), &why))
                    {
                        return round;
                    }
                }
            }
        }
    }

    /// Leaves out what is at fault for a refusal of this offer, which is made of `kept`. `None` if
    /// another configuration is to be offered.
    fn refused(
        &mut self,
        search: &mut Search,
        kept: &Snapshot,
        mut offer: Offer,
        (owner, why): (Option<&ObjectId>, &str),
    ) -> Option<Round> {
        self.shared.counters.refused.add();
        if self.keys.blame(&offer.map, owner, why) {
            return None;
        }
        // An earlier process sent what weir serves. Its objects are unknown, so none of what is
        // served is removed.
        let unknown = !self.refusals.knows_accepted()
            && self.served.as_ref().is_some_and(|served| !served.is_empty());
        if owner.is_none() && unknown {
            self.shared.counters.ready.store(true, Ordering::Relaxed);
            self.log_failure(&format!("weir keeps what it serves: {why}"));
            self.publish_report(&offer.made);
            return Some(Round::Stuck);
        }
        let searched = self.refusals.searches();
        let statuses = &offer.made.statuses;
        let longest = if searched { LONGEST_IN_GROUPS } else { LONGEST_ONE_BY_ONE };
        // What an earlier process sent is not taken away in groups.
        let left_out = match search.begin.elapsed() > longest && !unknown {
            true => self.refusals.give_up(kept, statuses, owner, why),
            false => self.refusals.leave_out(kept, statuses, owner, why),
        };
        if self.refusals.searches() && !searched {
            search.begin = Instant::now();
        }
        if left_out {
            return None;
        }
        self.refusals.end_search();
        // The objects left out on suspicion were not at fault.
        self.refusals.retain_only(&search.before);
        if self.keys.blame_snippets(&offer.map, why) {
            self.findings_of_map(&mut offer);
            return Some(self.keep_serving(&offer));
        }
        self.log_failure(&format!("weir keeps what it serves: {why}"));
        self.publish_report(&offer.made);
        Some(Round::Stuck)
    }

    fn findings_of_map(&self, offer: &mut Offer) {
        if let Some(map) = &self.options.config_map {
            offer.made.findings.extend(self.keys.findings(map));
        }
    }

    /// Keeps what weir serves. A key of the ConfigMap that may keep clients out is refused.
    fn keep_serving(&mut self, offer: &Offer) -> Round {
        let Some((key, why)) = self.keys.blocking() else { return Round::Stuck };
        let text = format!("{key} is refused: {why}");
        lock(&self.shared.obstacles).insert(CONFIG_MAP_OBSTACLE.to_owned(), text);
        if self.served.as_ref().is_some_and(|served| !served.is_empty()) {
            // An earlier process sent the configuration. Changes of its pods are still followed.
            if let Err(error) = self.adopt(&offer.made.groups) {
                self.log_failure(&format!("{}: {error}", self.options.settings.state.display()));
                return Round::Retry;
            }
            self.shared.counters.ready.store(true, Ordering::Relaxed);
        }
        self.log_failure(&format!("nothing changes until the {CONFIG_MAP_OBSTACLE} is right"));
        self.publish_report(&offer.made);
        Round::Stuck
    }

    /// Registers the groups of a configuration, and writes the files that are missing.
    fn adopt(&self, groups: &BTreeMap<String, ServerGroup>) -> io::Result<()> {
        let slices = lock(&self.shared.cluster.slices);
        let mut servers = lock(&self.shared.servers);
        // Pods may have changed since the translation began. Then another round follows.
        if servers.adopt(groups, &slices, &self.shared.counters)? {
            self.shared.cluster.changed.notify_one();
        }
        Ok(())
    }

    fn log_failure(&mut self, why: &str) {
        self.shared.counters.failures.add();
        self.shared.counters.last_is_taken.store(false, Ordering::Relaxed);
        if !std::mem::replace(&mut self.failure_logged, true) {
            say("error", why);
        }
    }

    /// Records the objects and files of the configuration that all workers serve.
    fn record_accepted(&mut self, snapshot: &Snapshot, offer: &mut Offer) {
        self.served = Some(std::mem::take(&mut offer.digest));
        self.last_accepted = Some(std::mem::take(&mut offer.made.text));
        self.in_use = offer.made.files.keys().cloned().collect();
        lock(&self.shared.servers).keep_only(&offer.made.groups);
        self.refusals.taken(snapshot);
    }

    /// Ends a round. weir serves the first `changes` changes, and no other configuration is to be
    /// offered.
    fn done(&mut self, snapshot: &Snapshot, mut offer: Offer, changes: u64) {
        self.shared.counters.last_is_taken.store(true, Ordering::Relaxed);
        self.shared.counters.changes_served.store(changes, Ordering::Relaxed);
        self.shared.counters.ready.store(true, Ordering::Relaxed);
        self.record_accepted(snapshot, &mut offer);
        let mut statuses = std::mem::take(&mut offer.made.statuses);
        self.refusals.report(&mut statuses);
        self.statuses = Some(Arc::new(statuses));
        self.publish_report(&offer.made);
    }

    /// Publishes the report. Findings about the ConfigMap are logged, too, for the administrator.
    fn publish_report(&mut self, made: &Translation) {
        let of_map = made.findings.iter();
        let of_map = of_map.filter(|f| f.object.kind == "ConfigMap" && f.severity > Severity::Note);
        let of_map: BTreeSet<Finding> = of_map.cloned().collect();
        for Finding { object, severity, about, message, .. } in of_map.difference(&self.logged) {
            let level = if *severity == Severity::Error { "error" } else { "warn" };
            say(level, format_args!("{object}: {about}: {message}"));
        }
        self.logged = of_map;
        let (findings, served) = (made.findings.clone(), made.served.clone());
        let report = Report { findings, served, statuses: self.statuses.clone() };
        self.shared.counters.findings(&report.findings);
        self.shared.report.send_replace(Arc::new(report));
    }

    /// Translates the objects. `None` if that failed, which is logged.
    async fn offer(&mut self, mut snapshot: Snapshot) -> Option<Offer> {
        for (key, list) in &self.addresses {
            snapshot.gateway.assigned.entry(key.clone()).or_insert_with(|| list.clone());
        }
        let mut settings = settings(&self.options, &snapshot);
        self.keys.apply(&mut settings.defaults);
        let map = settings.defaults.clone();
        self.addresses.clone_from(&settings.addresses_of);
        let socket = format!("unix:{}", self.options.weir_socket.display());
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
                self.log_failure(&error.to_string());
                None
            }
        }
    }
}

/// The settings, completed by the controller's ConfigMap and the published addresses.
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
    let balancers = options.services.as_ref().filter(|template| template.kind == "LoadBalancer");
    if let (Some(_), Some(controller)) = (balancers, settings.gateway_controllers.first()) {
        let services = snapshot.services.iter().map(|service| &**service);
        settings.balancers_of = Some(services::balancers(services, controller));
    }
    if !settings.gateway_ranges.is_empty() {
        settings.addresses_of = addresses::assign(snapshot, &settings);
        // A Gateway without an address of its own must not listen on all.
        settings.gateway_addresses.clear();
    }
    settings
}

/// Adds an internal server that answers with the digest of the configuration and with weir's
/// metrics. Returns the digest.
fn mark(text: &mut ConfigText, socket: &str) -> String {
    let digest = text.digest();
    let silent = || line("access_log", ["off"]);
    let metrics = line("location", ["=", METRICS_PATH])
        .with_block(vec![silent(), line("weir_status", ["prometheus"])]);
    let answer =
        line("location", ["/"]).with_block(vec![silent(), line("return", ["200", &digest])]);
    let names = [line("listen", [socket]), line("server_name", [INTERNAL_HOST])];
    text.add_server(names.into_iter().chain([metrics, answer]).collect());
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
