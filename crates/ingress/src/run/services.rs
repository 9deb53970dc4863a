//! A Service for each Gateway, if the operator wants that. The leader creates and updates them, and
//! deletes those whose Gateway is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use serde_json::Value;
use tokio::time::{sleep, timeout};

use super::cluster::{Key, Watched, lock};
use super::denials::{Denials, Failed};
use super::shared::{LONGEST_CALL, Shared, next_round, say};
use crate::gateway::services::{self, Template};
use crate::gateway::{AnyObject, Statuses};
use crate::report::ObjectId;

/// The pause between two writes, to bound the load on the API server.
const PACE: Duration = Duration::from_millis(10);
/// The field manager of server-side apply.
const MANAGER: &str = "weir-ingress";

/// The last write of a Service.
struct Written {
    sent: Service,
    /// The Service that the API server stored.
    stored: Service,
}

struct Writer {
    client: Client,
    shared: Arc<Shared>,
    controller: String,
    template: Template,
    written: BTreeMap<Key, Written>,
    /// Names that Services of others have. They were logged.
    taken_names: BTreeSet<Key>,
    denials: Denials<Key>,
}

/// Creates, updates and deletes Services, forever.
pub async fn write(client: Client, controller: String, template: Template, shared: Arc<Shared>) {
    let (mut reports, mut leads) = (shared.report.subscribe(), shared.leads.subscribe());
    let (written, taken_names, denials) = (BTreeMap::new(), BTreeSet::new(), Denials::default());
    let mut writer = Writer {
        client,
        shared: shared.clone(),
        controller,
        template,
        written,
        taken_names,
        denials,
    };
    let mut failed = false;
    loop {
        next_round(&mut reports, &mut leads).await;
        let Some(statuses) = reports.borrow_and_update().statuses.clone() else { continue };
        if !shared.leads() {
            continue;
        }
        match writer.round(&statuses).await {
            Ok(()) => failed = false,
            Err(why) => {
                if !std::mem::replace(&mut failed, true) {
                    say("warn", format_args!("Services of Gateways: {why}"));
                }
            }
        }
    }
}

impl Writer {
    async fn round(&mut self, statuses: &Statuses) -> Result<(), String> {
        let mut keys = BTreeSet::new();
        for (id, status) in &statuses.gateways {
            if !self.shared.leads() {
                return Ok(());
            }
            let held = lock(&self.shared.cluster.gateway).find(id).map(|(_, held)| held.clone());
            let object = held.as_ref().and_then(|held| held.object.as_ref());
            let Some(AnyObject::Gateway(gateway)) = object else { continue };
            let wanted = services::wanted(gateway, &status.ports, &self.template, &self.controller);
            let Some(wanted) = wanted else { continue };
            let key = wanted.key();
            let put = self.put(&key, &wanted).await;
            self.settle(&key, put).await?;
            keys.insert(key);
        }
        self.written.retain(|key, _| keys.contains(key));
        self.taken_names.retain(|key| keys.contains(key));
        for service in self.shared.cluster.all_services() {
            if !self.shared.leads() {
                return Ok(());
            }
            let key = service.key();
            if keys.contains(&key) || self.denials.must_wait(&key, Instant::now()) {
                continue;
            }
            let removed = match self.is_obsolete(&service).await {
                Ok(true) if self.shared.leads() => self.remove(&service).await.map(|()| true),
                Ok(true) => return Ok(()),
                other => other,
            };
            self.settle(&key, removed).await?;
        }
        Ok(())
    }

    /// Handles the outcome for one Service. A denied Service does not hold up the others.
    async fn settle(&mut self, key: &Key, done: Result<bool, Failed>) -> Result<(), String> {
        match done {
            Ok(false) => return Ok(()),
            Ok(true) => self.denials.remove(key),
            Err(Failed::Denied(why)) => {
                if self.denials.denied(key, Instant::now()) {
                    say("warn", format_args!("Service {}/{}: {why}", key.0, key.1));
                }
            }
            Err(Failed::Unavailable(why)) => return Err(format!("{}/{}: {why}", key.0, key.1)),
        }
        sleep(PACE).await;
        Ok(())
    }

    /// Creates or updates a Service. Returns whether anything was written.
    async fn put(&mut self, key: &Key, wanted: &Service) -> Result<bool, Failed> {
        if self.denials.must_wait(key, Instant::now()) {
            return Ok(false);
        }
        let found = self.shared.cluster.service(&key.0, &key.1);
        if let Some(found) = &found {
            let uid = |owner: &OwnerReference| owner.uid.clone();
            let own = services::owner(wanted, &self.controller).map(uid);
            let theirs = services::owner(found, &self.controller).map(uid);
            if own != theirs && !self.is_obsolete(found).await? {
                if self.taken_names.insert(key.clone()) {
                    let text = "has the name that a Gateway's would have, and is another's";
                    say("warn", format_args!("Service {}/{} {text}", key.0, key.1));
                }
                return Ok(false);
            }
            if let Some(known) = self.written.get(key).filter(|known| known.sent == *wanted)
                && (services::fits(found, wanted) || known.stored == **found)
            {
                return Ok(false);
            }
        }
        // The question whether the Gateway is gone may have taken its time.
        if !self.shared.leads() {
            return Ok(false);
        }
        let api: Api<Service> = Api::namespaced(self.client.clone(), &key.0);
        let mut params = PatchParams::apply(MANAGER);
        // Without force, a Service that another controller created meanwhile is a conflict.
        params.force = found.is_some();
        let patch = Patch::Apply(wanted);
        let call = api.patch(&key.1, &params, &patch);
        match timeout(LONGEST_CALL, call).await {
            Ok(Ok(mut stored)) => {
                stored.strip_metadata();
                self.written.insert(key.clone(), Written { sent: wanted.clone(), stored });
                Ok(true)
            }
            Ok(Err(error)) => Err(Failed::of(&error)),
            Err(_) => Err(Failed::timed_out()),
        }
    }

    /// Whether the Gateway of a Service is gone or has another class now. The API server is sent,
    /// since the Gateways may not be watched at the moment.
    async fn is_obsolete(&self, service: &Service) -> Result<bool, Failed> {
        let Some(owner) = services::owner(service, &self.controller) else { return Ok(false) };
        let namespace = service.key().0;
        let id = ObjectId { kind: "Gateway", namespace, name: owner.name.clone() };
        let (found, resource) = {
            let kinds = lock(&self.shared.cluster.gateway);
            let found = kinds.find(&id).and_then(|(_, held)| held.object.clone());
            (found, kinds.resource("Gateway").cloned())
        };
        let stands = |uid: Option<&str>, class: &str| {
            uid == Some(owner.uid.as_str()) && services::is_of_class(service, class)
        };
        if let Some(AnyObject::Gateway(gateway)) = found
            && stands(gateway.metadata.uid.as_deref(), &gateway.spec.gateway_class_name)
        {
            return Ok(false);
        }
        // The definition of Gateways is gone. The cluster deletes what its Gateways owned.
        let Some(resource) = resource else { return Ok(false) };
        let api: Api<DynamicObject> =
            Api::namespaced_with(self.client.clone(), &id.namespace, &resource);
        let gateway = match timeout(LONGEST_CALL, api.get_opt(&id.name)).await {
            Ok(Ok(Some(gateway))) => gateway,
            Ok(Ok(None)) => return Ok(true),
            Ok(Err(error)) => return Err(Failed::of(&error)),
            Err(_) => return Err(Failed::timed_out()),
        };
        let class = gateway.data.pointer("/spec/gatewayClassName").and_then(Value::as_str);
        Ok(!stands(gateway.metadata.uid.as_deref(), class.unwrap_or_default()))
    }

    async fn remove(&self, service: &Service) -> Result<(), Failed> {
        let (namespace, name) = service.key();
        let api: Api<Service> = Api::namespaced(self.client.clone(), &namespace);
        let uid = service.metadata.uid.clone();
        let preconditions = Some(Preconditions { uid, resource_version: None });
        let params = DeleteParams { preconditions, ..DeleteParams::default() };
        match timeout(LONGEST_CALL, api.delete(&name, &params)).await {
            // The Service is gone, or another one has its name now.
            Ok(Err(kube::Error::Api(status))) if matches!(status.code, 404 | 409) => Ok(()),
            Ok(Err(error)) => Err(Failed::of(&error)),
            Ok(Ok(_)) => Ok(()),
            Err(_) => Err(Failed::timed_out()),
        }
    }
}
