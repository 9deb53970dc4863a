//! Objects to weir: waits for changes, translates, hands over, and leaves out what weir refuses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use k8s_openapi::api::networking::v1::Ingress;
use tokio::time::{sleep, timeout};
use weir_conf::Directive;

use super::cluster::Watched;
use super::door::{Door, SERVED, Verdict};
use super::files::Files;
use super::{Options, Publish, Report, Shared, say, status};
use crate::gateway::addresses;
use crate::report::{Finding, ObjectId, Severity};
use crate::settings::Settings;
use crate::snapshot::Snapshot;
use crate::translate::{Translation, digest, line};

/// How often weir is asked which configuration it serves: one that was started anew serves another.
const LOOK: Duration = Duration::from_secs(1);
/// Waits after a failure, the first and the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The longest time for which changes are collected because translations take long.
const LONGEST_COLLECT: Duration = Duration::from_secs(2);
/// What weir refused is offered again after this time: a file or a name that it lacked may be there now.
const AGAIN: Duration = Duration::from_secs(300);

/// An Ingress that weir refused.
struct Refused {
    object: Arc<Ingress>,
    why: String,
    since: Instant,
}

/// A configuration on its way.
struct Offer {
    made: Translation,
    text: Vec<u8>,
    digest: String,
}

struct Server {
    options: Options,
    shared: Arc<Shared>,
    door: Door,
    files: Files,
    refused: BTreeMap<ObjectId, Refused>,
    /// The Ingresses of the configuration that weir took last.
    good: BTreeMap<ObjectId, Arc<Ingress>>,
    in_use: BTreeSet<PathBuf>,
    /// The addresses of Gateways, also of those whose status does not have them yet.
    addresses: BTreeMap<(String, String), Vec<String>>,
    /// The digest that weir is known to serve.
    served: Option<String>,
    /// What could not be handed over was said.
    complained: bool,
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
        refused: BTreeMap::new(),
        good: BTreeMap::new(),
        in_use: BTreeSet::new(),
        addresses: BTreeMap::new(),
        served: None,
        complained: false,
    };
    let (mut wait, mut cost) = (FIRST_WAIT, Duration::ZERO);
    server.shared.cluster.changed.notified().await;
    loop {
        // Bounded: the first change sets the time, later ones do not move it.
        sleep(server.options.collect.max(cost.min(LONGEST_COLLECT))).await;
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
            let due = self.refused.values().any(|r| now.saturating_duration_since(r.since) > AGAIN);
            if due || longest.is_some_and(|longest| begin.elapsed() > longest) {
                self.refused.retain(|_, r| now.saturating_duration_since(r.since) <= AGAIN);
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
        let Some(snapshot) = self.shared.cluster.snapshot() else { return Round::Done };
        self.shared.counters.objects.set(snapshot.ingresses.len());
        if self.served.is_none() {
            self.served = self.door.served().await.ok();
        }
        let before: BTreeSet<ObjectId> = self.refused.keys().cloned().collect();
        loop {
            let (snapshot, findings) = self.without_refused(snapshot.clone());
            let kept = snapshot.clone();
            let Some(mut offer) = self.offer(snapshot).await else { return Round::Stuck };
            offer.made.findings.extend(findings);
            if self.served.as_ref() == Some(&offer.digest) {
                self.done(&kept, offer);
                return Round::Done;
            }
            if let Err(error) = self.files.write(&offer.made.files, Instant::now()) {
                self.complain(&format!("{}: {error}", self.options.settings.state.display()));
                return Round::Again;
            }
            match self.door.put(offer.text.clone()).await {
                Verdict::Taken(by) => {
                    self.shared.counters.taken.add();
                    if std::mem::take(&mut self.complained) {
                        say("notice", format_args!("weir has the configuration, taken by {by}"));
                    }
                    self.done(&kept, offer);
                    return Round::Done;
                }
                Verdict::Later(why) => {
                    self.served = None;
                    self.complain(&why);
                    return Round::Again;
                }
                Verdict::Refused(place, why) => {
                    self.shared.counters.refused.add();
                    if !self.leave_out(&kept, &offer, place, &why) {
                        self.complain(&format!("weir keeps what it serves: {why}"));
                        // What was left out on suspicion was not the reason.
                        self.refused.retain(|id, _| before.contains(id));
                        self.tell(&offer.made);
                        return Round::Stuck;
                    }
                }
            }
        }
    }

    fn complain(&mut self, why: &str) {
        self.shared.counters.failures.add();
        if !std::mem::replace(&mut self.complained, true) {
            say("error", why);
        }
    }

    fn done(&mut self, snapshot: &Snapshot, offer: Offer) {
        self.shared.counters.ready.store(true, Ordering::Relaxed);
        self.served = Some(offer.digest);
        self.in_use = offer.made.files.keys().cloned().collect();
        self.good = snapshot.ingresses.iter().map(|i| (id(i), i.clone())).collect();
        self.tell(&offer.made);
    }

    /// Passes findings on.
    fn tell(&self, made: &Translation) {
        let report = Report { findings: made.findings.clone(), served: made.served.clone() };
        self.shared.counters.findings(&report.findings);
        self.shared.report.send_replace(Arc::new(report));
    }

    /// The objects with what weir refused left out, or as it was before; and what is to be said about that.
    fn without_refused(&mut self, mut snapshot: Snapshot) -> (Snapshot, Vec<Finding>) {
        let mut findings = Vec::new();
        let now: BTreeMap<ObjectId, Arc<Ingress>> = match self.refused.is_empty() {
            true => return (snapshot, findings),
            false => snapshot.ingresses.iter().map(|i| (id(i), i.clone())).collect(),
        };
        // One that was changed since has another chance.
        self.refused.retain(|id, refused| now.get(id).is_some_and(|i| i.same(&refused.object)));
        for (id, refused) in &self.refused {
            let before = self.good.get(id).filter(|before| !before.same(&refused.object));
            let instead = match before {
                Some(_) => "the version before stays in service",
                None => "it is not served",
            };
            findings.push(Finding {
                object: id.clone(),
                severity: Severity::Error,
                reason: "Refused",
                about: "configuration".to_owned(),
                message: format!("{instead}: {}", refused.why),
            });
        }
        snapshot.ingresses.retain_mut(|ingress| {
            let id = id(ingress);
            let Some(refused) = self.refused.get(&id) else { return true };
            match self.good.get(&id).filter(|before| !before.same(&refused.object)) {
                Some(before) => {
                    *ingress = before.clone();
                    true
                }
                None => false,
            }
        });
        (snapshot, findings)
    }

    /// Finds what to leave out; whether there is anything.
    fn leave_out(
        &mut self,
        snapshot: &Snapshot,
        offer: &Offer,
        place: Option<u32>,
        why: &str,
    ) -> bool {
        let since = Instant::now();
        let read = weir_conf::read_text(&PathBuf::from("offer.conf"), &offer.text);
        let owner = place.and_then(|n| offer.made.owners.at(n, &offer.made.tree, &read.main));
        let of = |wanted: &ObjectId| snapshot.ingresses.iter().find(|i| id(i) == *wanted);
        let mut out: Vec<Arc<Ingress>> = owner.and_then(of).cloned().into_iter().collect();
        if out.is_empty() {
            // No place: all that is new since weir took a configuration.
            let new = |i: &&Arc<Ingress>| self.good.get(&id(i)).is_none_or(|good| !good.same(i));
            out = snapshot.ingresses.iter().filter(new).cloned().collect();
        }
        // One that is refused already stands here as the version before: then it goes as well.
        let mut any = false;
        for object in out {
            let id = id(&object);
            if self.refused.contains_key(&id) {
                any |= self.good.remove(&id).is_some();
                continue;
            }
            any = true;
            self.refused.insert(id, Refused { object, why: why.to_owned(), since });
        }
        any
    }

    /// The configuration for these objects; `None`: it has no text, which was said.
    async fn offer(&mut self, mut snapshot: Snapshot) -> Option<Offer> {
        for (key, list) in &self.addresses {
            snapshot.gateway.assigned.entry(key.clone()).or_insert_with(|| list.clone());
        }
        let settings = settings(&self.options, &snapshot);
        self.addresses.clone_from(&settings.addresses_of);
        let socket = format!("unix:{}", self.options.door.display());
        let made = tokio::task::spawn_blocking(move || {
            let mut made = crate::translate(&snapshot, &settings);
            let text = weir_conf::print(&made.tree).map_err(|error| error.to_string())?;
            let digest = digest(&text);
            mark(&mut made.tree, &socket, &digest);
            let text = weir_conf::print(&made.tree).map_err(|error| error.to_string())?;
            Ok::<_, String>(Offer { made, text, digest })
        });
        match made.await.map_err(|error| error.to_string()).flatten() {
            Ok(offer) => Some(offer),
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }
}

fn id(ingress: &Ingress) -> ObjectId {
    ObjectId::of("Ingress", &ingress.metadata)
}

/// The settings with the defaults of the controller's ConfigMap.
pub(super) fn settings(options: &Options, snapshot: &Snapshot) -> Settings {
    let mut settings = options.settings.clone();
    if let Some((namespace, name)) = &options.config_map {
        let found = snapshot.config_maps.iter().find(|map| {
            map.metadata.name.as_ref() == Some(name)
                && map.metadata.namespace.as_ref() == Some(namespace)
        });
        settings.defaults = found.and_then(|map| map.data.clone()).unwrap_or_default();
    }
    settings.published = status::published(&options.publish, |namespace, name| {
        let mut all = snapshot.services.iter();
        all.find(|service| {
            service.metadata.name.as_deref() == Some(name)
                && service.metadata.namespace.as_deref() == Some(namespace)
        })
        .cloned()
    });
    if options.publish == Publish::Nothing {
        settings.published.extend(options.pod_address.clone());
    }
    if !settings.gateway_ranges.is_empty() {
        settings.addresses_of = addresses::assign(snapshot, &settings);
        // A Gateway that has none yet must not listen everywhere.
        settings.gateway_addresses.clear();
    }
    settings
}

/// Lets weir say which configuration it serves.
fn mark(tree: &mut [Directive], socket: &str, digest: &str) {
    let Some(http) = tree.iter_mut().find(|d| d.name.is("http")) else { return };
    let answer = line("location", ["/"])
        .with_block(vec![line("access_log", ["off"]), line("return", ["200", digest])]);
    let server = line("server", []).with_block(vec![
        line("listen", [socket]),
        line("server_name", [SERVED]),
        answer,
    ]);
    if let weir_conf::DirectiveBody::Block(list) = &mut http.body {
        list.push(server);
    }
}
