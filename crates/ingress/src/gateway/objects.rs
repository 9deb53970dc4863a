//! The objects of Gateway API v1, with the fields that a translation reads.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

pub use super::kinds::{AnyObject, KINDS, Kind, Objects};

/// The group of all these objects.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// An object with its metadata.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Object<S> {
    /// Its metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// Its spec.
    pub spec: S,
}

/// A class of Gateways.
pub type GatewayClass = Object<GatewayClassSpec>;
/// A Gateway.
pub type Gateway = Object<GatewaySpec>;
/// A ListenerSet.
pub type ListenerSet = Object<ListenerSetSpec>;
/// An HTTPRoute.
pub type HttpRoute = Object<HttpRouteSpec>;
/// A GRPCRoute.
pub type GrpcRoute = Object<GrpcRouteSpec>;
/// A TLSRoute, TCPRoute or UDPRoute.
pub type StreamRoute = Object<StreamRouteSpec>;
/// A ReferenceGrant.
pub type ReferenceGrant = Object<ReferenceGrantSpec>;
/// A BackendTLSPolicy.
pub type BackendTlsPolicy = Object<BackendTlsPolicySpec>;

/// Declares structs whose fields have the names and defaults of the API.
macro_rules! specs {
    ($($(#[$doc:meta])* $name:ident { $($(#[$attr:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize, PartialEq)]
        #[serde(rename_all = "camelCase", default)]
        #[allow(missing_docs, reason = "the API documents its fields")]
        pub struct $name { $($(#[$attr])* pub $field: $type,)* }
    )*};
}

specs! {
    /// `GatewayClass.spec`
    GatewayClassSpec { controller_name: String, parameters_ref: Option<Value>, }
    /// `Gateway.spec`
    GatewaySpec {
        gateway_class_name: String,
        listeners: Vec<ListenerSpec>,
        addresses: Vec<GatewayAddress>,
        infrastructure: Option<Infrastructure>,
        allowed_listeners: Option<AllowedListeners>,
        tls: Option<GatewayTls>,
    }
    /// An address that a Gateway requests.
    GatewayAddress {
        r#type: Option<String>,
        value: Option<String>,
        routability: Option<String>,
    }
    /// Labels and annotations for the objects that are made for a Gateway.
    Infrastructure {
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        parameters_ref: Option<Value>,
    }
    /// The namespaces whose ListenerSets may attach.
    AllowedListeners { namespaces: Option<FromNamespaces>, }
    /// Namespaces, by `from` and a selector of labels.
    FromNamespaces { from: Option<String>, selector: Option<LabelSelector>, }
    /// TLS of a whole Gateway.
    GatewayTls { backend: Option<BackendTls>, frontend: Option<Frontend>, }
    /// The certificate that a Gateway presents to backends.
    BackendTls { client_certificate_ref: Option<Reference>, }
    /// The validation of client certificates.
    Frontend { default: FrontendTls, per_port: Vec<FrontendPort>, }
    /// The validation for one port.
    FrontendPort { port: i32, tls: FrontendTls, }
    /// The TLS settings of the frontend.
    FrontendTls { validation: Option<FrontendValidation>, }
    /// Authorities for clients' certificates.
    FrontendValidation { ca_certificate_refs: Vec<Reference>, mode: Option<String>, }
    /// A listener of a Gateway or ListenerSet.
    ListenerSpec {
        name: String,
        hostname: Option<String>,
        port: i32,
        protocol: String,
        tls: Option<ListenerTls>,
        allowed_routes: Option<AllowedRoutes>,
        filters: Option<ListenerFilters>,
    }
    /// Filters before a route is chosen.
    ListenerFilters { requests: Vec<Filter>, }
    /// TLS of a listener.
    ListenerTls {
        mode: Option<String>,
        certificate_refs: Vec<Reference>,
        options: BTreeMap<String, String>,
    }
    /// The routes that may attach.
    AllowedRoutes { namespaces: Option<FromNamespaces>, kinds: Vec<RouteKindRef>, }
    /// A kind of route.
    RouteKindRef { group: Option<String>, kind: String, }
    /// `ListenerSet.spec`
    ListenerSetSpec { parent_ref: ParentReference, listeners: Vec<ListenerSpec>, }
    /// A reference to another object.
    Reference {
        group: Option<String>,
        kind: Option<String>,
        name: String,
        namespace: Option<String>,
        port: Option<i32>,
    }
    /// A reference from a route or ListenerSet to its parent.
    ParentReference {
        group: Option<String>,
        kind: Option<String>,
        namespace: Option<String>,
        name: String,
        section_name: Option<String>,
        port: Option<i32>,
    }
    /// `HTTPRoute.spec`
    HttpRouteSpec {
        parent_refs: Vec<ParentReference>,
        hostnames: Vec<String>,
        rules: Vec<HttpRule>,
    }
    /// A rule for HTTP.
    HttpRule {
        matches: Vec<HttpMatch>,
        filters: Vec<Filter>,
        backend_refs: Vec<BackendRef>,
        timeouts: Option<Timeouts>,
        retry: Option<Retry>,
        session_persistence: Option<SessionPersistence>,
    }
    /// A match. All of its conditions must hold.
    HttpMatch {
        path: Option<TypedValue>,
        headers: Vec<NamedValue>,
        query_params: Vec<NamedValue>,
        method: Option<String>,
    }
    /// A value and the type of its match.
    TypedValue { r#type: Option<String>, value: Option<String>, }
    /// A named value and the type of its match.
    NamedValue { r#type: Option<String>, name: String, value: String, }
    /// Timeouts.
    Timeouts { request: Option<String>, backend_request: Option<String>, }
    /// Retries.
    Retry { codes: Vec<u16>, attempts: Option<u32>, backoff: Option<String>, }
    /// Binds a client to a server.
    SessionPersistence {
        session_name: Option<String>,
        absolute_timeout: Option<String>,
        r#type: Option<String>,
        cookie: Option<CookieConfig>,
        cookie_config: Option<CookieConfig>,
    }
    /// The settings of a cookie. Before v1.7, the session has its name, and it has no path.
    CookieConfig { name: Option<String>, path: Option<String>, lifetime_type: Option<String>, }
    /// A filter.
    Filter {
        r#type: String,
        request_header_modifier: Option<HeaderChange>,
        response_header_modifier: Option<HeaderChange>,
        request_mirror: Option<Mirror>,
        request_redirect: Option<Redirect>,
        url_rewrite: Option<UrlRewrite>,
        cors: Option<Cors>,
    }
    /// Changes to headers.
    HeaderChange { set: Vec<NamedValue>, add: Vec<NamedValue>, remove: Vec<String>, }
    /// Mirrors requests.
    Mirror { backend_ref: Reference, percent: Option<u32>, fraction: Option<Fraction>, }
    /// A fraction.
    Fraction { numerator: u32, denominator: Option<u32>, }
    /// A redirect.
    Redirect {
        scheme: Option<String>,
        hostname: Option<String>,
        path: Option<PathChange>,
        port: Option<u16>,
        status_code: Option<u16>,
    }
    /// The replacement of a path.
    PathChange {
        r#type: String,
        replace_full_path: Option<String>,
        replace_prefix_match: Option<String>,
    }
    /// Another host or path for the backend.
    UrlRewrite { hostname: Option<String>, path: Option<PathChange>, }
    /// The origins that may use a rule, and how.
    Cors {
        allow_origins: Vec<String>,
        allow_credentials: Option<bool>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<i32>,
    }
    /// A backend and its weight.
    BackendRef {
        group: Option<String>,
        kind: Option<String>,
        name: String,
        namespace: Option<String>,
        port: Option<i32>,
        weight: Option<u32>,
        filters: Vec<Filter>,
    }
    /// `GRPCRoute.spec`
    GrpcRouteSpec {
        parent_refs: Vec<ParentReference>,
        hostnames: Vec<String>,
        rules: Vec<GrpcRule>,
    }
    /// A rule for gRPC.
    GrpcRule {
        matches: Vec<GrpcMatch>,
        filters: Vec<Filter>,
        backend_refs: Vec<BackendRef>,
        session_persistence: Option<SessionPersistence>,
    }
    /// A match. All of its conditions must hold.
    GrpcMatch { method: Option<GrpcMethod>, headers: Vec<NamedValue>, }
    /// A service, a method of it, or both.
    GrpcMethod { r#type: Option<String>, service: Option<String>, method: Option<String>, }
    /// The spec of a TLSRoute, TCPRoute or UDPRoute.
    StreamRouteSpec {
        parent_refs: Vec<ParentReference>,
        hostnames: Vec<String>,
        rules: Vec<StreamRule>,
    }
    /// A rule for connections or datagrams.
    StreamRule { backend_refs: Vec<BackendRef>, }
    /// `ReferenceGrant.spec`
    ReferenceGrantSpec { from: Vec<GrantFrom>, to: Vec<GrantTo>, }
    /// The objects whose references are allowed.
    GrantFrom { group: String, kind: String, namespace: String, }
    /// The objects that they may refer to.
    GrantTo { group: String, kind: String, name: Option<String>, }
    /// `BackendTLSPolicy.spec`
    BackendTlsPolicySpec { target_refs: Vec<PolicyTarget>, validation: PolicyValidation, }
    /// The target of a policy.
    PolicyTarget { group: String, kind: String, name: String, section_name: Option<String>, }
    /// How a backend's certificate is verified.
    PolicyValidation {
        ca_certificate_refs: Vec<Reference>,
        #[serde(rename = "wellKnownCACertificates")]
        well_known: Option<String>,
        hostname: String,
        subject_alt_names: Vec<SubjectAltName>,
    }
    /// A name that a backend's certificate may have in place of the hostname.
    SubjectAltName { #[serde(rename = "type")] kind: String, hostname: String, uri: String, }
}

impl BackendRef {
    /// The referenced object.
    pub fn target(&self) -> Reference {
        Reference {
            group: self.group.clone(),
            kind: self.kind.clone(),
            name: self.name.clone(),
            namespace: self.namespace.clone(),
            port: self.port,
        }
    }
}
