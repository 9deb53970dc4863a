//! The objects of a cluster at one moment.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::gateway::kinds::keep_last;
use crate::gateway::objects::Objects;
use crate::report::ObjectId;

/// The objects that a translation reads.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Classes, which decide the Ingresses that weir serves.
    pub classes: Vec<Arc<IngressClass>>,
    /// Rules for hosts and paths.
    pub ingresses: Vec<Arc<Ingress>>,
    /// Services, which stand for groups of pods.
    pub services: Vec<Arc<Service>>,
    /// The addresses of pods.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// Certificates and passwords.
    pub secrets: Vec<Arc<Secret>>,
    /// Earlier versions of Secrets whose present certificates cannot be used.
    pub kept_secrets: Vec<Arc<Secret>>,
    /// Headers and parameters that annotations name.
    pub config_maps: Vec<Arc<ConfigMap>>,
    /// Objects of Gateway API.
    pub gateway: Objects,
}

/// The largest manifest.
const LARGEST_FILE: u64 = 64 << 20;

/// The most nodes of a file: mappings, lists and scalars. Each takes eight bytes or more in a
/// manifest.
const MOST_NODES: usize = LARGEST_FILE as usize / 8;

/// The most documents of a file.
const MOST_DOCUMENTS: usize = LARGEST_FILE as usize / 64;

/// The depth to which folders are read.
const DEEPEST: u32 = 16;

impl Snapshot {
    /// Reads the manifests of a folder, or one file. What could not be read is returned as text.
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
        let several = |id| format!("{id} is defined several times: the last definition counts");
        problems.extend(snapshot.keep_last().into_iter().map(several));
        Ok((snapshot, problems))
    }

    /// Keeps the last of several objects with the same name, as the API server would. Returns the
    /// ids whose objects differed.
    fn keep_last(&mut self) -> BTreeSet<ObjectId> {
        let mut again = BTreeSet::new();
        keep_last("IngressClass", &mut self.classes, |object| &object.metadata, &mut again);
        keep_last("Ingress", &mut self.ingresses, |object| &object.metadata, &mut again);
        keep_last("Service", &mut self.services, |object| &object.metadata, &mut again);
        keep_last("EndpointSlice", &mut self.slices, |object| &object.metadata, &mut again);
        keep_last("Secret", &mut self.secrets, |object| &object.metadata, &mut again);
        keep_last("ConfigMap", &mut self.config_maps, |object| &object.metadata, &mut again);
        self.gateway.keep_last(&mut again);
        again
    }

    /// A ConfigMap by namespace and name.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<&ConfigMap> {
        let named = |map: &&Arc<ConfigMap>| {
            map.metadata.namespace.as_deref() == Some(namespace)
                && map.metadata.name.as_deref() == Some(name)
        };
        self.config_maps.iter().find(named).map(|map| &**map)
    }

    /// Adds the documents of a YAML or JSON text. Returns the errors.
    pub fn add_text(&mut self, text: &str) -> Vec<String> {
        match serde_saphyr::from_multiple_with_options::<Value>(text, yaml()) {
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
            "Secret" => {
                put(&mut self.secrets, document)?;
                if let Some(secret) = self.secrets.last_mut() {
                    take_texts(Arc::make_mut(secret));
                }
                Ok(())
            }
            "ConfigMap" => put(&mut self.config_maps, document),
            kind if kind.ends_with("List") => {
                let Value::Object(mut list) = document else { return Ok(()) };
                let Some(Value::Array(items)) = list.remove("items") else { return Ok(()) };
                let wrong: Vec<String> =
                    items.into_iter().filter_map(|item| self.add(item).err()).collect();
                if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
            }
            // Other kinds, such as Deployments, are ignored.
            _ => self.gateway.add(&document).unwrap_or(Ok(())),
        }
    }
}

/// Limits for the largest file. The reader's own limits of aliases, depth and scalars stay.
fn yaml() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MOST_NODES,
            max_events: 2 * MOST_NODES,
            max_documents: MOST_DOCUMENTS,
        },
    }
}

fn put<T: DeserializeOwned>(list: &mut Vec<Arc<T>>, document: Value) -> Result<(), String> {
    let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("?").to_owned();
    let kind = document.get("kind").and_then(Value::as_str).unwrap_or("?").to_owned();
    let object = serde_json::from_value(document).map_err(|e| format!("{kind} {name}: {e}"))?;
    list.push(Arc::new(object));
    Ok(())
}

/// Adds the texts of a manifest to the data of its Secret, as the API server does.
fn take_texts(secret: &mut Secret) {
    let Some(texts) = secret.string_data.take() else { return };
    let texts = texts.into_iter().map(|(key, text)| (key, ByteString(text.into_bytes())));
    secret.data.get_or_insert_default().extend(texts);
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An Ingress as `kubectl get -o yaml` prints it, with managed fields.
    fn ingress(n: usize) -> String {
        let managed = (0..10).map(|k| format!("          f:field{k}: {{}}\n")).collect::<String>();
        format!(
            "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: site{n}\n  namespace: many\n  managedFields:\n  \
             - apiVersion: networking.k8s.io/v1\n    fieldsType: FieldsV1\n    fieldsV1:\n      f:metadata:\n        f:annotations:\n{managed}    \
             manager: kubectl\nspec:\n  rules:\n  - host: site{n}.example.com\n    http:\n      paths:\n      - path: /\n        pathType: Prefix\n        \
             backend:\n          service:\n            name: site\n            port:\n              number: 80\n"
        )
    }

    #[test]
    fn a_large_cluster_is_one_file() {
        let documents: Vec<String> = (0..5000).map(ingress).collect();
        let mut snapshot = Snapshot::default();
        assert_eq!(snapshot.add_text(&documents.join("---\n")), Vec::<String>::new());
        assert_eq!(snapshot.ingresses.len(), 5000);
    }

    #[test]
    fn what_grows_by_aliases_and_what_is_too_deep_is_refused() {
        let mut laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..10 {
            let again = vec![format!("*a{}", n - 1); 10].join(", ");
            laughs.push_str(&format!("a{n}: &a{n} [{again}]\n"));
        }
        // One long word, many times.
        let long = format!("a: &a {}\nb: [{}]\n", "x".repeat(1 << 20), vec!["*a"; 90].join(", "));
        let deep = format!("a: {}1{}\n", "[".repeat(2000), "]".repeat(2000));
        for text in [laughs, long, deep] {
            let problems = Snapshot::default().add_text(&text);
            assert!(problems.iter().any(|p| p.starts_with("is not YAML: ")), "{problems:?}");
        }
    }
}
