//! The statuses of objects of Gateway API. The holder of the Lease writes them, where they differ from what is there.

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

/// How often statuses are compared without a word of the API server.
const LOOK: Duration = Duration::from_secs(10);
/// So many are written at once, and then none for a while: thousands of them do not take the API server.
const AT_ONCE: usize = 8;
const PACE: Duration = Duration::from_millis(40);

/// What is known about an object that was written.
struct Written {
    asked: Value,
    /// What the API server has made of it: it drops fields that its definition does not have.
    got: Value,
}

/// What a status should be.
struct Wanted {
    id: ObjectId,
    status: Value,
    /// The generation of the object that was judged.
    generation: Option<i64>,
}

/// How a write has ended.
enum Step {
    /// Nothing was to be written.
    Right,
    /// The API server has made this of it.
    Written(Value),
    /// The object is another one now: what is to be said about it comes.
    Changed,
}

struct Writer {
    client: Client,
    shared: Arc<Shared>,
    controller: String,
    /// A Service is made for each Gateway.
    services: bool,
    written: BTreeMap<ObjectId, Written>,
}

/// Writes what differs, for ever.
pub async fn write(client: Client, controller: String, services: bool, shared: Arc<Shared>) {
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let mut writer =
        Writer { client, shared: shared.clone(), controller, services, written: BTreeMap::new() };
    let (mut known, mut wanted) = (None::<Arc<Statuses>>, Vec::new());
    let mut denials: Denials<ObjectId> = Denials::default();
    let mut failed = false;
    loop {
        tokio::select! {
            _ = reports.changed() => {}
            _ = leads.changed() => {}
            () = shared.cluster.told.notified() => {}
            () = sleep(LOOK) => {}
        }
        let Some(statuses) = reports.borrow_and_update().statuses.clone() else { continue };
        if !*leads.borrow_and_update() {
            continue;
        }
        if !known.as_ref().is_some_and(|known| Arc::ptr_eq(known, &statuses)) {
            wanted = writer.wanted(&statuses);
            known = Some(statuses);
        }
        let over = writer.over(&wanted);
        let mut due: Vec<&Wanted> = Vec::new();
        for one in wanted.iter().chain(&over) {
            match writer.patch(one) {
                Ok(_) if !denials.holds(&one.id, Instant::now()) => due.push(one),
                Err(Step::Right) => denials.passed(&one.id),
                _ => {}
            }
        }
        // A route is told that it is served once its Gateway says so.
        let (routes, first): (Vec<&Wanted>, Vec<&Wanted>) =
            due.into_iter().partition(|one| one.id.kind.ends_with("Route"));
        'due: for some in first.chunks(AT_ONCE).chain(routes.chunks(AT_ONCE)) {
            let steps = join_all(some.iter().map(|one| writer.step(one))).await;
            for (one, step) in some.iter().zip(steps) {
                match step {
                    Ok(Step::Written(got)) => {
                        failed = false;
                        denials.passed(&one.id);
                        let asked = one.status.clone();
                        writer.written.insert(one.id.clone(), Written { asked, got });
                    }
                    Ok(Step::Right) => denials.passed(&one.id),
                    Ok(Step::Changed) => {}
                    Err(Failed::Denied(why)) => {
                        if denials.denied(&one.id, Instant::now()) {
                            say("warn", format_args!("status of {}: {why}", one.id));
                        }
                    }
                    Err(Failed::Away(why)) => {
                        if !std::mem::replace(&mut failed, true) {
                            say("warn", format_args!("status of {}: {why}", one.id));
                        }
                        break 'due;
                    }
                }
            }
            sleep(PACE).await;
            // A newer report has what is true now, and another pod may hold the Lease.
            if reports.has_changed().unwrap_or(false) || leads.has_changed().unwrap_or(false) {
                break;
            }
        }
    }
}

/// A status on its way.
struct Change {
    resource: ApiResource,
    /// The version of the object that it is for.
    version: Option<String>,
    status: Value,
}

impl Writer {
    fn wanted(&mut self, statuses: &Statuses) -> Vec<Wanted> {
        let documents = statuses.documents(&self.controller, self.services);
        let ids: BTreeSet<&ObjectId> = documents.iter().map(|(id, _)| id).collect();
        self.written.retain(|id, _| ids.contains(id));
        documents
            .into_iter()
            .map(|(id, status)| {
                let generation = statuses.generations.get(&id).copied();
                Wanted { id, status, generation }
            })
            .collect()
    }

    /// Routes and policies that still say what this controller has said, and are none of its any more.
    fn over(&self, wanted: &[Wanted]) -> Vec<Wanted> {
        let ids: BTreeSet<&ObjectId> = wanted.iter().map(|one| &one.id).collect();
        let kinds = lock(&self.shared.cluster.gateway);
        let told = kinds.all().filter(|held| merge::is_told(&held.status, &self.controller));
        let objects = told.filter_map(|held| held.object.as_ref());
        let over = objects.filter(|object| !ids.contains(&object.id()));
        over.map(|object| {
            let id = object.id();
            let key = if id.kind == "BackendTLSPolicy" { "ancestors" } else { "parents" };
            Wanted { id, status: json!({ key: [] }), generation: object.metadata().generation }
        })
        .collect()
    }

    /// What is to be written, if anything is.
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
        let Some(status) = made else { return Err(Step::Right) };
        let known = self.written.get(id);
        if known.is_some_and(|known| known.asked == wanted.status && known.got == held.status) {
            return Err(Step::Right);
        }
        Ok(Change { resource, version: held.version.clone(), status })
    }

    /// Writes a status if it differs.
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
        // The version makes it a conflict where another controller was faster.
        let patch = json!({ "metadata": { "resourceVersion": version }, "status": status });
        let (params, patch) = (PatchParams::default(), Patch::Merge(&patch));
        let written = timeout(LONGEST_CALL, api.patch_status(&id.name, &params, &patch)).await;
        let object = match written {
            Ok(Ok(object)) => object,
            // It was deleted or changed meanwhile; the watch tells.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => {
                return Ok(Step::Changed);
            }
            Ok(Err(error)) => return Err(Failed::of(&error)),
            Err(_) => return Err(Failed::silent()),
        };
        self.shared.counters.statuses.add();
        let got = object.data.get("status").cloned().unwrap_or_default();
        let now = object.metadata.resource_version;
        lock(&self.shared.cluster.gateway).written(id, version.as_deref(), &got, now);
        Ok(Step::Written(got))
    }
}
