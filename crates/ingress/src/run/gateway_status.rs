//! The statuses of Gateway API objects. The leader writes those that differ from the cluster's.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, ApiResource, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::cluster::lock;
use super::denials::{Denials, Failed};
use super::shared::{LONGEST_CALL, Shared, say};
use crate::gateway::{Statuses, merge};
use crate::report::ObjectId;

/// How often statuses are compared, if nothing changes.
const COMPARE_EVERY: Duration = Duration::from_secs(10);
/// At most this many statuses are written at once, with a pause after them, to bound the load on
/// the API server.
const AT_ONCE: usize = 8;
const PACE: Duration = Duration::from_millis(40);

/// The last status that was written to an object.
struct Written {
    sent: Value,
    /// The status that the API server stored. It drops fields that the definition of the kind
    /// lacks.
    stored: Value,
}

/// The status that an object should have.
struct Wanted {
    id: ObjectId,
    status: Value,
    /// The generation of the object that the status is about.
    generation: Option<i64>,
}

/// The outcome of a write.
enum Step {
    /// The status is up to date.
    UpToDate,
    /// Written; the status that the API server stored.
    Written(Value),
    /// The object has changed since. Its next translation gives its status.
    Changed,
}

struct Writer {
    client: Client,
    shared: Arc<Shared>,
    controller: String,
    /// Whether each Gateway gets a Service.
    services: bool,
    written: BTreeMap<ObjectId, Written>,
    /// The statuses of the last report for objects without a list of controllers.
    own: BTreeMap<ObjectId, Value>,
    /// Such objects that no longer belong to this controller, with their last status.
    left: BTreeMap<ObjectId, Value>,
}

/// Writes statuses that differ, forever.
pub async fn write(client: Client, controller: String, services: bool, shared: Arc<Shared>) {
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let mut writer = Writer {
        client,
        shared: shared.clone(),
        controller,
        services,
        written: BTreeMap::new(),
        own: BTreeMap::new(),
        left: BTreeMap::new(),
    };
    let (mut known, mut wanted) = (None::<Arc<Statuses>>, Vec::new());
    let mut denials: Denials<ObjectId> = Denials::default();
    let mut failed = false;
    loop {
        tokio::select! {
            _ = reports.changed() => {}
            _ = leads.changed() => {}
            () = shared.cluster.status_changed.notified() => {}
            () = sleep(COMPARE_EVERY) => {}
        }
        let Some(statuses) = reports.borrow_and_update().statuses.clone() else { continue };
        // Every pod follows which objects come and go, since it may hold the Lease next.
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, &statuses)) {
            wanted = writer.wanted(&statuses);
            known = Some(statuses);
        }
        if !shared.leads() {
            continue;
        }
        let obsolete = writer.obsolete(&wanted);
        let mut due: Vec<&Wanted> = Vec::new();
        for one in wanted.iter().chain(&obsolete) {
            match writer.patch(one) {
                Ok(_) if !denials.must_wait(&one.id, Instant::now()) => due.push(one),
                Err(Step::UpToDate) => denials.remove(&one.id),
                _ => {}
            }
        }
        // Routes come after Gateways: a route must not say that it is served before its Gateway
        // does.
        let (routes, first): (Vec<&Wanted>, Vec<&Wanted>) =
            due.into_iter().partition(|one| one.id.kind.ends_with("Route"));
        'due: for some in first.chunks(AT_ONCE).chain(routes.chunks(AT_ONCE)) {
            let steps = join_all(some.iter().map(|one| writer.step(one))).await;
            for (one, step) in some.iter().zip(steps) {
                match step {
                    Ok(Step::Written(stored)) => {
                        failed = false;
                        denials.remove(&one.id);
                        let sent = one.status.clone();
                        writer.written.insert(one.id.clone(), Written { sent, stored });
                    }
                    Ok(Step::UpToDate) => denials.remove(&one.id),
                    Ok(Step::Changed) => {}
                    Err(Failed::Denied(why)) => {
                        if denials.denied(&one.id, Instant::now()) {
                            say("warn", format_args!("status of {}: {why}", one.id));
                        }
                    }
                    Err(Failed::Unavailable(why)) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("status of {}: {why}", one.id));
                        }
                        break 'due;
                    }
                }
            }
            sleep(PACE).await;
            // A newer report may differ, and another pod may hold the Lease.
            if reports.has_changed().unwrap_or(false) || !shared.leads() {
                break;
            }
        }
    }
}

/// The patch of a status.
struct Change {
    resource: ApiResource,
    /// The resource version of the object that the patch is for.
    version: Option<String>,
    status: Value,
}

/// The status that the API gives new objects, which waits for a controller.
fn pending(id: &ObjectId, generation: i64) -> Value {
    let conditions = ["Accepted", "Programmed"].map(|kind| {
        json!({ "type": kind, "status": "Unknown", "reason": "Pending",
            "message": "Waiting for controller", "observedGeneration": generation })
    });
    let mut status = json!({ "conditions": conditions, "listeners": [] });
    // The addresses stay: a Gateway has them again if its class comes back.
    if id.kind == "Gateway" {
        status["attachedListenerSets"] = 0.into();
    }
    status
}

impl Writer {
    fn wanted(&mut self, statuses: &Statuses) -> Vec<Wanted> {
        let documents = statuses.documents(&self.controller, self.services);
        let ids: BTreeSet<&ObjectId> = documents.iter().map(|(id, _)| id).collect();
        self.written.retain(|id, _| ids.contains(id));
        let before = std::mem::take(&mut self.own);
        let is_own = |id: &&ObjectId| matches!(id.kind, "Gateway" | "ListenerSet");
        for (id, status) in documents.iter().filter(|(id, _)| is_own(&id)) {
            self.left.remove(id);
            self.own.insert(id.clone(), status.clone());
        }
        self.left.extend(before.into_iter().filter(|(id, _)| !self.own.contains_key(id)));
        documents
            .into_iter()
            .map(|(id, status)| {
                let generation = statuses.generations.get(&id).copied();
                Wanted { id, status, generation }
            })
            .collect()
    }

    /// Statuses for objects that no longer belong to this controller but still have a status from
    /// it: empty ones, or those of new objects.
    fn obsolete(&mut self, wanted: &[Wanted]) -> Vec<Wanted> {
        let ids: BTreeSet<&ObjectId> = wanted.iter().map(|one| &one.id).collect();
        let kinds = lock(&self.shared.cluster.gateway);
        let told = kinds.all().filter(|held| merge::has_entry_of(&held.status, &self.controller));
        let objects = told.filter_map(|held| held.object.as_ref());
        let obsolete = objects.filter(|object| !ids.contains(&object.id()));
        let mut list: Vec<Wanted> = obsolete
            .map(|object| {
                let id = object.id();
                let key = if id.kind == "BackendTLSPolicy" { "ancestors" } else { "parents" };
                Wanted { id, status: json!({ key: [] }), generation: object.metadata().generation }
            })
            .collect();
        // A status that another controller has written since stays.
        self.left.retain(|id, last| {
            let Some((_, held)) = kinds.find(id) else { return false };
            let Some(object) = &held.object else { return false };
            // Of the rest, the definition of the kind may lack a part.
            let last = json!({ "conditions": last.get("conditions") });
            let is_last = merge::merge(&held.status, &last, &self.controller, "").is_none();
            if is_last {
                let generation = object.metadata().generation;
                let status = pending(id, generation.unwrap_or_default());
                list.push(Wanted { id: id.clone(), status, generation });
            }
            is_last
        });
        list
    }

    /// The patch to write, or why there is none.
    fn patch(&self, wanted: &Wanted) -> Result<Change, Step> {
        let id = &wanted.id;
        let found = lock(&self.shared.cluster.gateway)
            .find(id)
            .map(|(resource, held)| (resource.clone(), held.clone()));
        let Some((resource, held)) = found else { return Err(Step::Changed) };
        let generation = held.object.as_ref().and_then(|object| object.metadata().generation);
        if generation.is_some() && generation != wanted.generation {
            return Err(Step::Changed);
        }
        let now = serde_json::to_value(Time(Timestamp::now())).unwrap_or_default();
        let now = now.as_str().unwrap_or_default();
        let made = merge::merge(&held.status, &wanted.status, &self.controller, now);
        let Some(status) = made else { return Err(Step::UpToDate) };
        let known = self.written.get(id);
        if known.is_some_and(|known| known.sent == wanted.status && known.stored == held.status) {
            return Err(Step::UpToDate);
        }
        Ok(Change { resource, version: held.version.clone(), status })
    }

    /// Writes a status if it differs from the object's.
    async fn step(&self, wanted: &Wanted) -> Result<Step, Failed> {
        let id = &wanted.id;
        let Change { resource, version, status } = match self.patch(wanted) {
            Ok(change) => change,
            Err(step) => return Ok(step),
        };
        let api: Api<DynamicObject> = match id.namespace.is_empty() {
            true => Api::all_with(self.client.clone(), &resource),
            false => Api::namespaced_with(self.client.clone(), &id.namespace, &resource),
        };
        // With the resource version, the API server answers 409 if the object has changed since.
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = timeout(LONGEST_CALL, api.patch_status(&id.name, &params, &patch)).await;
        let object = match written {
            Ok(Ok(object)) => object,
            // The object was deleted or changed. The watch delivers that.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                return Ok(Step::Changed);
            }
            Ok(Err(error)) => return Err(Failed::of(&error)),
            Err(_) => return Err(Failed::timed_out()),
        };
        self.shared.counters.statuses.add();
        let stored = object.data.get("status").cloned().unwrap_or_default();
        let now = object.metadata.resource_version;
        lock(&self.shared.cluster.gateway).update_status(id, version.as_deref(), &stored, now);
        Ok(Step::Written(stored))
    }
}
