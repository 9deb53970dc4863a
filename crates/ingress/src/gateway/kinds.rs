//! The kinds of Gateway API: their names in the API, and their lists in a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::objects::{
    BackendTlsPolicy, GROUP, Gateway, GatewayClass, GrpcRoute, HttpRoute, ListenerSet, Object,
    ReferenceGrant, StreamRoute,
};
use crate::report::ObjectId;

/// A kind of object.
#[derive(Debug, PartialEq, Eq)]
pub struct Kind {
    /// The `kind` of its objects.
    pub name: &'static str,
    /// The plural in paths of the API.
    pub plural: &'static str,
}

/// Declares the kinds once: the table, an object of any of them, and the lists of a snapshot.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident($type:ty) in $field:ident: $name:literal, $plural:literal;)*) => {
        /// All kinds.
        pub const KINDS: &[Kind] =
            &[$(Kind { name: $name, plural: $plural }),*];

        /// An object of any kind.
        #[derive(Clone, Debug, PartialEq)]
        pub enum AnyObject {
            $($(#[$doc])* $variant(Arc<$type>),)*
        }

        /// The objects of Gateway API in a snapshot.
        #[derive(Clone, Debug, Default)]
        pub struct Objects {
            $($(#[$doc])* pub $field: Vec<Arc<$type>>,)*
            /// The namespaces, for their labels.
            pub namespaces: Vec<Arc<Namespace>>,
            /// The addresses in the statuses of Gateways, by namespace and name.
            pub assigned: BTreeMap<(String, String), Vec<String>>,
            /// The versions of Gateway API that the cluster's definitions of these kinds are of.
            /// None of them is known from manifests.
            pub bundles: BTreeSet<String>,
        }

        impl AnyObject {
            /// Reads the spec of an object. `None` if it is of another kind.
            pub fn read(kind: &str, metadata: ObjectMeta, spec: Value) -> Option<Result<AnyObject, String>> {
                match kind {
                    $($name => {
                        let read = serde_json::from_value(spec);
                        Some(match read {
                            Ok(spec) => Ok(AnyObject::$variant(Arc::new(Object { metadata, spec }))),
                            Err(error) => Err(error.to_string()),
                        })
                    })*
                    _ => None,
                }
            }

            /// Kind, namespace and name. Objects without a namespace have an empty one.
            pub fn id(&self) -> ObjectId {
                match self {
                    $(AnyObject::$variant(object) => ObjectId::of($name, &object.metadata),)*
                }
            }

            /// Its metadata.
            pub fn metadata(&self) -> &ObjectMeta {
                match self {
                    $(AnyObject::$variant(object) => &object.metadata,)*
                }
            }
        }

        impl PartialEq for Objects {
            fn eq(&self, other: &Objects) -> bool {
                $(same(&self.$field, &other.$field) &&)*
                same(&self.namespaces, &other.namespaces)
                    && self.assigned == other.assigned
                    && self.bundles == other.bundles
            }
        }

        impl Objects {
            /// Adds an object.
            pub fn put(&mut self, object: AnyObject) {
                match object {
                    $(AnyObject::$variant(object) => self.$field.push(object),)*
                }
            }

            /// Keeps the last of several objects with the same name. Those that differed are added
            /// to `again`.
            pub(crate) fn keep_last(&mut self, again: &mut BTreeSet<ObjectId>) {
                $(keep_last($name, &mut self.$field, |object| &object.metadata, again);)*
                keep_last("Namespace", &mut self.namespaces, |object| &object.metadata, again);
            }

            /// All objects.
            pub fn all(&self) -> impl Iterator<Item = AnyObject> {
                let list = std::iter::empty();
                $(let list = list.chain(self.$field.iter().cloned().map(AnyObject::$variant));)*
                list
            }
        }
    };
}

/// Keeps the last of several objects with the same name. Those that differed are added to `again`.
pub(crate) fn keep_last<T: PartialEq>(
    kind: &'static str,
    list: &mut Vec<Arc<T>>,
    metadata: fn(&T) -> &ObjectMeta,
    again: &mut BTreeSet<ObjectId>,
) {
    let mut last: BTreeMap<ObjectId, Arc<T>> = BTreeMap::new();
    for object in list.iter() {
        let id = ObjectId::of(kind, metadata(object));
        if last.insert(id.clone(), object.clone()).is_some_and(|before| before != *object) {
            again.insert(id);
        }
    }
    list.retain(|object| {
        let id = ObjectId::of(kind, metadata(object));
        last.get(&id).is_some_and(|last| Arc::ptr_eq(last, object))
    });
}

/// Whether two lists are equal. Most objects are the same allocation, which is compared first.
fn same<T: PartialEq>(one: &[Arc<T>], other: &[Arc<T>]) -> bool {
    let each = |(one, other): (&Arc<T>, &Arc<T>)| Arc::ptr_eq(one, other) || one == other;
    one.len() == other.len() && one.iter().zip(other).all(each)
}

kinds! {
    /// Classes of Gateways.
    Class(GatewayClass) in classes: "GatewayClass", "gatewayclasses";
    /// Gateways, which have listeners.
    Gateway(Gateway) in gateways: "Gateway", "gateways";
    /// Further listeners for a Gateway.
    ListenerSet(ListenerSet) in listener_sets: "ListenerSet", "listenersets";
    /// Rules for HTTP.
    HttpRoute(HttpRoute) in http_routes: "HTTPRoute", "httproutes";
    /// Rules for gRPC.
    GrpcRoute(GrpcRoute) in grpc_routes: "GRPCRoute", "grpcroutes";
    /// Server names of TLS connections.
    TlsRoute(StreamRoute) in tls_routes: "TLSRoute", "tlsroutes";
    /// Connections of TCP.
    TcpRoute(StreamRoute) in tcp_routes: "TCPRoute", "tcproutes";
    /// Datagrams.
    UdpRoute(StreamRoute) in udp_routes: "UDPRoute", "udproutes";
    /// Permissions of references from other namespaces.
    Grant(ReferenceGrant) in grants: "ReferenceGrant", "referencegrants";
    /// TLS to backends.
    Policy(BackendTlsPolicy) in policies: "BackendTLSPolicy", "backendtlspolicies";
}

impl Objects {
    /// Adds a document of one of these kinds. `None` if it is of another kind.
    pub fn add(&mut self, document: &Value) -> Option<Result<(), String>> {
        let text = |key: &str| document.get(key).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        let name = document.pointer("/metadata/name").and_then(Value::as_str).unwrap_or("?");
        let wrong = |error: String| Err(format!("{kind} {name}: {error}"));
        if version == "v1" && kind == "Namespace" {
            return Some(match serde_json::from_value(document.clone()) {
                Ok(namespace) => {
                    self.namespaces.push(Arc::new(namespace));
                    Ok(())
                }
                Err(error) => wrong(error.to_string()),
            });
        }
        if version.split('/').next() != Some(GROUP) {
            return None;
        }
        let metadata = document.get("metadata").cloned().unwrap_or_default();
        let metadata = match serde_json::from_value(metadata) {
            Ok(metadata) => metadata,
            Err(error) => return Some(wrong(error.to_string())),
        };
        let spec = document.get("spec").cloned().unwrap_or_default();
        let read = AnyObject::read(kind, metadata, spec)?;
        Some(match read {
            Ok(object) => {
                self.put(object);
                Ok(())
            }
            Err(error) => wrong(error),
        })
    }
}
