//! The objects of a cluster at one moment.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gateway::objects::Objects;

/// The objects that a translation reads.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Classes: which Ingresses are weir's.
    pub classes: Vec<Arc<IngressClass>>,
    /// Rules for hosts and paths.
    pub ingresses: Vec<Arc<Ingress>>,
    /// Names for groups of pods.
    pub services: Vec<Arc<Service>>,
    /// The addresses of those pods.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// Certificates and passwords.
    pub secrets: Vec<Arc<Secret>>,
    /// Headers and parameters that annotations name.
    pub config_maps: Vec<Arc<ConfigMap>>,
    /// Objects of Gateway API.
    pub gateway: Objects,
}

/// Files that are larger are no manifests.
const LARGEST_FILE: u64 = 64 << 20;

/// Folders are read down to this depth.
const DEEPEST: u32 = 16;

impl Snapshot {
    /// Reads all manifests of a folder, or of one file; what could not be read comes back as text.
    pub fn read(path: &Path) -> io::Result<(Snapshot, Vec<String>)> {
        let mut snapshot = Snapshot::default();
        let mut problems = Vec::new();
        let mut files = Vec::new();
        collect(path, 0, &mut files)?;
        for file in files {
            if fs::metadata(&file)?.len() > LARGEST_FILE {
                problems.push(format!("{}: is too large for a manifest", file.display()));
                continue;
            }
            let text = fs::read_to_string(&file)?;
            problems.extend(
                snapshot.add_text(&text).into_iter().map(|p| format!("{}: {p}", file.display())),
            );
        }
        Ok((snapshot, problems))
    }

    /// A ConfigMap by namespace and name.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&ConfigMap> {
        let named = |map: &&Arc<ConfigMap>| {
            map.metadata.namespace.as_deref() == Some(namespace)
                && map.metadata.name.as_deref() == Some(name)
        };
        self.config_maps.iter().find(named).map(|map| &**map)
    }

    /// Adds the documents of a YAML (or JSON) text; the problems with some of them.
    pub fn add_text(&mut self, text: &str) -> Vec<String> {
        match serde_saphyr::from_multiple::<Value>(text) {
            Ok(documents) => {
                documents.into_iter().filter_map(|document| self.add(document).err()).collect()
            }
            Err(error) => vec![format!("is not YAML: {error}")],
        }
    }

    fn add(&mut self, document: Value) -> Result<(), String> {
        let kind = document.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        match kind.as_str() {
            "IngressClass" => put(&mut self.classes, document),
            "Ingress" => put(&mut self.ingresses, document),
            "Service" => put(&mut self.services, document),
            "EndpointSlice" => put(&mut self.slices, document),
            "Secret" => put(&mut self.secrets, document),
            "ConfigMap" => put(&mut self.config_maps, document),
            kind if kind.ends_with("List") => {
                let Value::Object(mut list) = document else { return Ok(()) };
                let Some(Value::Array(items)) = list.remove("items") else { return Ok(()) };
                let wrong: Vec<String> =
                    items.into_iter().filter_map(|item| self.add(item).err()).collect();
                if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
            }
            // Deployments and others are of no matter here.
            _ => self.gateway.add(&document).unwrap_or(Ok(())),
        }
    }
}

fn put<T: DeserializeOwned>(list: &mut Vec<Arc<T>>, document: Value) -> Result<(), String> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("?").to_owned();
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or("?").to_owned();
    let object = serde_json::from_value(document).map_err(|e| format!("{kind} {name}: {e}"))?;
    list.push(Arc::new(object));
    Ok(())
}

fn collect(path: &Path, depth: u32, files: &mut Vec<PathBuf>) -> io::Result<()> {
    if !fs::metadata(path)?.is_dir() {
        files.push(path.to_owned());
        return Ok(());
    }
    if depth == DEEPEST {
        return Ok(());
    }
    let mut entries: Vec<PathBuf> =
        fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    entries.sort();
    for entry in entries {
        let manifest =
            matches!(entry.extension().and_then(|e| e.to_str()), Some("yaml" | "yml" | "json"));
        if entry.is_dir() || manifest {
            collect(&entry, depth + 1, files)?;
        }
    }
    Ok(())
}
