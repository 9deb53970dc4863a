//! Findings about objects.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// An object by its kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    /// `Ingress`, `HTTPRoute`, ...
    pub kind: &'static str,
    /// Its namespace; empty for an object without one.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// Whether objects of a kind have no namespace.
pub fn is_cluster_scoped(kind: &str) -> bool {
    matches!(kind, "GatewayClass" | "IngressClass" | "Namespace")
}

impl ObjectId {
    /// Namespace and name of what this object names: `NAMESPACE/NAME`, or `NAME` in its own namespace.
    pub fn named<'n>(&'n self, name: &'n str) -> (&'n str, &'n str) {
        name.split_once('/').unwrap_or((&self.namespace, name))
    }

    /// The id of the object with this metadata. A manifest without a namespace is one of `default`.
    pub fn of(kind: &'static str, meta: &ObjectMeta) -> ObjectId {
        let namespace = match is_cluster_scoped(kind) {
            true => String::new(),
            false => meta.namespace.clone().unwrap_or_else(|| "default".to_owned()),
        };
        ObjectId { kind, namespace, name: meta.name.clone().unwrap_or_default() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectId { kind, namespace, name } = self;
        if namespace.is_empty() {
            return write!(f, "{kind} {name}");
        }
        write!(f, "{kind} {namespace}/{name}")
    }
}

/// How much a finding changes for clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Clients get the same.
    Note,
    /// A setting has no effect.
    Warning,
    /// A part of the object is not served.
    Error,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Note => "note",
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// A finding about an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Finding {
    /// The object.
    pub object: ObjectId,
    /// How much it changes for clients.
    pub severity: Severity,
    /// One word for programs, the reason of an Event.
    pub reason: &'static str,
    /// The annotation, path or host that it is about.
    pub about: String,
    /// What is wrong and what weir does, for people.
    pub message: String,
}

/// The findings of a translation.
#[derive(Debug, Default)]
pub struct Findings {
    /// Ordered by object, each finding once.
    list: BTreeSet<Finding>,
}

impl Findings {
    /// Adds a finding. Control characters are replaced, since terminals and logs show the text.
    pub fn add(
        &mut self,
        object: &ObjectId,
        severity: Severity,
        reason: &'static str,
        about: &str,
        message: impl fmt::Display,
    ) {
        let finding = Finding {
            object: object.clone(),
            severity,
            reason,
            about: shown(about),
            message: match reason {
                // These have lines with a caret, which weir_conf has made printable.
                "InvalidSnippet" => {
                    message.to_string().lines().map(shown).collect::<Vec<_>>().join("\n")
                }
                _ => shown(&message.to_string()),
            },
        };
        self.list.insert(finding);
    }

    /// Adds earlier findings.
    pub fn extend(&mut self, findings: &[Finding]) {
        self.list.extend(findings.iter().cloned());
    }

    /// All findings, by object.
    pub fn into_sorted(self) -> Vec<Finding> {
        self.list.into_iter().collect()
    }
}

/// The longest text of an object in a message.
const SHOWN: usize = 300;

fn shown(text: &str) -> String {
    let visible = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().take(SHOWN).map(visible).collect()
}
