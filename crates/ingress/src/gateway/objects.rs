//! The objects of Gateway API v1, as far as a translation reads them.

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
    /// Name, namespace, time of birth.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is asked for.
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

/// Declares structs whose fields are named and defaulted as in the API.
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
    /// An address that a Gateway asks for.
    GatewayAddress {
        r#type: Option<String>,
        value: Option<String>,
        routability: Option<String>,
    }
    /// What the objects that serve a Gateway look like.
    Infrastructure {
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>,
        parameters_ref: Option<Value>,
    }
    /// Which ListenerSets may join.
    AllowedListeners { namespaces: Option<FromNamespaces>, }
    /// `from`, with a selector of labels.
    FromNamespaces { from: Option<String>, selector: Option<LabelSelector>, }
    /// TLS of a whole Gateway.
    GatewayTls { backend: Option<BackendTls>, frontend: Option<Frontend>, }
    /// The certificate that a Gateway shows to servers behind.
    BackendTls { client_certificate_ref: Option<Reference>, }
    /// Which clients' certificates are good.
    Frontend { default: FrontendTls, per_port: Vec<FrontendPort>, }
    /// The same for a port.
    FrontendPort { port: i32, tls: FrontendTls, }
    /// The same, as it is written.
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
    /// Changes of requests before a route is chosen.
    ListenerFilters { requests: Vec<Filter>, }
    /// TLS of a listener.
    ListenerTls {
        mode: Option<String>,
        certificate_refs: Vec<Reference>,
        options: BTreeMap<String, String>,
    }
    /// Which routes may attach.
    AllowedRoutes { namespaces: Option<FromNamespaces>, kinds: Vec<RouteKindRef>, }
    /// A kind of routes.
    RouteKindRef { group: Option<String>, kind: String, }
    /// `ListenerSet.spec`
    ListenerSetSpec { parent_ref: ParentReference, listeners: Vec<ListenerSpec>, }
    /// Another object by its name.
    Reference {
        group: Option<String>,
        kind: Option<String>,
        name: String,
        namespace: Option<String>,
        port: Option<i32>,
    }
    /// What a route attaches to.
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
    /// All of these must hold.
    HttpMatch {
        path: Option<TypedValue>,
        headers: Vec<NamedValue>,
        query_params: Vec<NamedValue>,
        method: Option<String>,
    }
    /// A value and how it is compared.
    TypedValue { r#type: Option<String>, value: Option<String>, }
    /// A named value and how it is compared.
    NamedValue { r#type: Option<String>, name: String, value: String, }
    /// Times.
    Timeouts { request: Option<String>, backend_request: Option<String>, }
    /// Repeated attempts.
    Retry { codes: Vec<u16>, attempts: Option<u32>, backoff: Option<String>, }
    /// Which server a client stays with.
    SessionPersistence {
        session_name: Option<String>,
        absolute_timeout: Option<String>,
        r#type: Option<String>,
        cookie: Option<CookieConfig>,
        cookie_config: Option<CookieConfig>,
    }
    /// A cookie. Before v1.7, sessions have its name, and it has no path.
    CookieConfig { name: Option<String>, path: Option<String>, lifetime_type: Option<String>, }
    /// A change of requests or answers.
    Filter {
        r#type: String,
        request_header_modifier: Option<HeaderChange>,
        response_header_modifier: Option<HeaderChange>,
        request_mirror: Option<Mirror>,
        request_redirect: Option<Redirect>,
        url_rewrite: Option<UrlRewrite>,
        cors: Option<Cors>,
    }
    /// Changes of headers.
    HeaderChange { set: Vec<NamedValue>, add: Vec<NamedValue>, remove: Vec<String>, }
    /// A copy of requests.
    Mirror { backend_ref: Reference, percent: Option<u32>, fraction: Option<Fraction>, }
    /// A share.
    Fraction { numerator: u32, denominator: Option<u32>, }
    /// An answer that sends a client elsewhere.
    Redirect {
        scheme: Option<String>,
        hostname: Option<String>,
        path: Option<PathChange>,
        port: Option<u16>,
        status_code: Option<u16>,
    }
    /// Another path.
    PathChange {
        r#type: String,
        replace_full_path: Option<String>,
        replace_prefix_match: Option<String>,
    }
    /// Another host or path for the server behind.
    UrlRewrite { hostname: Option<String>, path: Option<PathChange>, }
    /// Which pages of other sites may ask.
    Cors {
        allow_origins: Vec<String>,
        allow_credentials: Option<bool>,
        allow_methods: Vec<String>,
        allow_headers: Vec<String>,
        expose_headers: Vec<String>,
        max_age: Option<i32>,
    }
    /// A server behind, with its share.
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
    /// All of these must hold.
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
    /// Whose references are allowed.
    GrantFrom { group: String, kind: String, namespace: String, }
    /// What they may name.
    GrantTo { group: String, kind: String, name: Option<String>, }
    /// `BackendTLSPolicy.spec`
    BackendTlsPolicySpec { target_refs: Vec<PolicyTarget>, validation: PolicyValidation, }
    /// What a policy is for.
    PolicyTarget { group: String, kind: String, name: String, section_name: Option<String>, }
    /// How a server behind is known.
    PolicyValidation {
        ca_certificate_refs: Vec<Reference>,
        #[serde(rename = "wellKnownCACertificates")]
        well_known: Option<String>,
        hostname: String,
        subject_alt_names: Vec<SubjectAltName>,
    }
    /// A name that the certificate of a server behind may have instead.
    SubjectAltName { #[serde(rename = "type")] kind: String, hostname: String, uri: String, }
}

impl BackendRef {
    /// The object that it names.
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
