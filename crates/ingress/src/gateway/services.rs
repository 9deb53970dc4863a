//! The Service that is made for a Gateway, and the comparison with the present one.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::objects::{GROUP, Gateway};
use super::status::GatewayPort;
use crate::translate::digest;

/// The label with the Gateway's name.
const NAME: &str = "gateway.networking.k8s.io/gateway-name";
/// The label with the name of the Gateway's class.
const CLASS: &str = "gateway.networking.k8s.io/gateway-class-name";
/// The annotation with the controller that made the Service.
const MADE_BY: &str = "weir.internal/made-by";
/// The longest name of a Service, and the longest value of a label.
const LONGEST: usize = 63;

/// The operator's settings for all of these Services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template {
    /// `ClusterIP`, `NodePort` or `LoadBalancer`.
    pub kind: String,
    /// The selector of pods. If empty, the operator makes the EndpointSlices.
    pub selector: BTreeMap<String, String>,
}

/// A name, shortened to the limit if necessary. Different names stay different.
fn short(name: &str) -> String {
    if name.len() <= LONGEST {
        return name.to_owned();
    }
    let digest = digest(name.as_bytes());
    let stem: String = name.chars().take(LONGEST - 1 - digest.len()).collect();
    format!("{stem}-{digest}")
}

/// The name of a Service: the Gateway's and its class's, if a Service may have that name.
fn name(gateway: &str, class: &str) -> String {
    let wanted = format!("{gateway}-{class}");
    let is_label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let fits = wanted.chars().all(is_label) && wanted.starts_with(|c: char| c.is_ascii_lowercase());
    match fits {
        true => short(&wanted),
        false => format!("gateway-{}", digest(wanted.as_bytes())),
    }
}

/// The Service for a Gateway. `None` if it has no ports, which a Service needs.
pub fn wanted<'a>(
    gateway: &Gateway,
    ports: impl IntoIterator<Item = &'a GatewayPort>,
    template: &Template,
    controller: &str,
) -> Option<Service> {
    let meta = &gateway.metadata;
    let (own_name, class) = (meta.name.as_deref()?, gateway.spec.gateway_class_name.as_str());
    let port = |port: &GatewayPort| ServicePort {
        name: Some(format!("{}-{}", if port.udp { "udp" } else { "tcp" }, port.number)),
        port: port.number.into(),
        protocol: Some(if port.udp { "UDP" } else { "TCP" }.to_owned()),
        target_port: Some(IntOrString::Int(port.target.into())),
        ..ServicePort::default()
    };
    let ports: Vec<ServicePort> = ports.into_iter().map(port).collect();
    if ports.is_empty() {
        return None;
    }
    let infrastructure = gateway.spec.infrastructure.clone().unwrap_or_default();
    let (mut labels, mut annotations) = (infrastructure.labels, infrastructure.annotations);
    // These come last, so that a Gateway cannot replace them.
    labels.insert(NAME.to_owned(), short(own_name));
    labels.insert(CLASS.to_owned(), short(class));
    annotations.insert(MADE_BY.to_owned(), controller.to_owned());
    let owner = OwnerReference {
        api_version: format!("{GROUP}/v1"),
        kind: "Gateway".to_owned(),
        name: own_name.to_owned(),
        uid: meta.uid.clone()?,
        controller: Some(true),
        block_owner_deletion: None,
    };
    Some(Service {
        metadata: ObjectMeta {
            name: Some(name(own_name, class)),
            namespace: meta.namespace.clone(),
            labels: Some(labels),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            type_: Some(template.kind.clone()),
            selector: (!template.selector.is_empty()).then(|| template.selector.clone()),
            ports: Some(ports),
            ..ServiceSpec::default()
        }),
        status: None,
    })
}

/// The owner of a Service, if this controller made it.
pub fn owner<'a>(service: &'a Service, controller: &str) -> Option<&'a OwnerReference> {
    let meta = &service.metadata;
    let made_by = meta.annotations.as_ref().and_then(|list| list.get(MADE_BY));
    let owners = meta.owner_references.as_deref().unwrap_or_default();
    let is_owner = |one: &&OwnerReference| one.kind == "Gateway" && one.controller == Some(true);
    owners.iter().find(is_owner).filter(|_| made_by.is_some_and(|by| by == controller))
}

/// Whether a Service was made for a Gateway of this class.
pub fn is_of_class(service: &Service, class: &str) -> bool {
    let labels = service.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(CLASS)).is_some_and(|label| *label == short(class))
}

/// Whether a Service has all wanted fields. Other clients may add further ones.
pub fn fits(found: &Service, wanted: &Service) -> bool {
    type Words = Option<BTreeMap<String, String>>;
    fn has(found: &Words, wanted: &Words) -> bool {
        let mut all = wanted.iter().flatten();
        all.all(|(key, value)| found.as_ref().and_then(|list| list.get(key)) == Some(value))
    }
    fn owners(list: &Option<Vec<OwnerReference>>) -> &[OwnerReference] {
        list.as_deref().unwrap_or_default()
    }
    let (one, other) = (&found.metadata, &wanted.metadata);
    let (Some(spec), Some(asked)) = (&found.spec, &wanted.spec) else { return false };
    let rows = |spec: &ServiceSpec| -> Vec<_> {
        let ports = spec.ports.iter().flatten();
        let row = |port: &ServicePort| {
            (port.name.clone(), port.port, port.protocol.clone(), port.target_port.clone())
        };
        let mut rows: Vec<_> = ports.map(row).collect();
        rows.sort_by_key(|row| (row.1, row.2.clone()));
        rows
    };
    has(&one.labels, &other.labels)
        && has(&one.annotations, &other.annotations)
        && owners(&other.owner_references)
            .iter()
            .all(|owner| owners(&one.owner_references).contains(owner))
        && spec.type_ == asked.type_
        && spec.selector.clone().unwrap_or_default() == asked.selector.clone().unwrap_or_default()
        && rows(spec) == rows(asked)
}

/// The addresses or names of a Service. Its cluster IP counts only if it asks for no load balancer.
/// While a load balancer is being made, clients and DNS must not get the cluster IP.
pub(crate) fn addresses(service: &Service) -> Vec<String> {
    let balancer = service.status.as_ref().and_then(|s| s.load_balancer.as_ref());
    let given = balancer.and_then(|b| b.ingress.as_deref()).unwrap_or_default();
    let mut list: Vec<String> =
        given.iter().flat_map(|a| a.ip.clone().or_else(|| a.hostname.clone())).collect();
    let Some(spec) = &service.spec else { return list };
    let mut add = |more: &[String]| {
        let new: Vec<String> = more.iter().filter(|one| !list.contains(one)).cloned().collect();
        list.extend(new);
        list.is_empty()
    };
    if !add(spec.external_ips.as_deref().unwrap_or_default()) {
        return list;
    }
    let own = match spec.type_.as_deref() {
        Some("LoadBalancer") => None,
        Some("ExternalName") => spec.external_name.as_ref(),
        // A headless Service has the cluster IP "None".
        _ => spec.cluster_ip.as_ref().filter(|ip| *ip != "None"),
    };
    list.extend(own.filter(|own| !own.is_empty()).cloned());
    list
}

/// The addresses of the load balancers that Gateways have, by namespace and name of the Gateway.
pub(crate) fn balancers<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    controller: &str,
) -> BTreeMap<(String, String), Vec<String>> {
    let one = |service: &Service| {
        let owner = owner(service, controller)?;
        let key = (service.metadata.namespace.clone().unwrap_or_default(), owner.name.clone());
        Some((key, addresses(service)))
    };
    services.into_iter().filter_map(one).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const CONTROLLER: &str = "weir.internal/gateway";

    fn gateway(name: &str, class: &str) -> Gateway {
        let object = json!({ "metadata": { "name": name, "namespace": "a", "uid": "u-1" },
            "spec": { "gatewayClassName": class, "infrastructure": {
                "labels": { "team": "blue", NAME: "another" }, "annotations": { "size": "small", MADE_BY: "x" } } } });
        serde_json::from_value(object).unwrap()
    }

    fn service(name: &str, class: &str, ports: &[GatewayPort]) -> Option<Service> {
        let template = Template { kind: "ClusterIP".to_owned(), selector: BTreeMap::new() };
        wanted(&gateway(name, class), ports, &template, CONTROLLER)
    }

    const WEB: GatewayPort = GatewayPort { number: 80, udp: false, target: 8080 };
    const NAMES: GatewayPort = GatewayPort { number: 53, udp: true, target: 53 };

    #[test]
    fn a_gateway_s_service_has_its_ports_labels_and_annotations() {
        let made = serde_json::to_value(service("web", "weir", &[NAMES, WEB])).unwrap();
        assert_eq!(
            made,
            json!({ "apiVersion": "v1", "kind": "Service",
                "metadata": { "name": "web-weir", "namespace": "a",
                    "labels": { "team": "blue", NAME: "web", CLASS: "weir" },
                    "annotations": { "size": "small", MADE_BY: CONTROLLER },
                    "ownerReferences": [{ "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway", "name": "web",
                        "uid": "u-1", "controller": true }] },
                "spec": { "type": "ClusterIP", "ports": [
                    { "name": "udp-53", "port": 53, "protocol": "UDP", "targetPort": 53 },
                    { "name": "tcp-80", "port": 80, "protocol": "TCP", "targetPort": 8080 }] } })
        );
        assert_eq!(service("web", "weir", &[]), None);
    }

    #[test]
    fn a_name_that_no_service_may_have_becomes_another() {
        let of = |name: &str| service(name, "weir", &[WEB]).unwrap().metadata.name.unwrap();
        assert_eq!(of("web"), "web-weir");
        let long = "a".repeat(60);
        let names = ["1st", "web.example", &long, &format!("{long}a")].map(of);
        for (number, name) in names.iter().enumerate() {
            assert!(name.len() <= LONGEST && !name.contains('.'), "{name}");
            assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{name}");
            assert!(!names[..number].contains(name), "{name}");
        }
        let labels = service(&"b".repeat(200), "weir", &[WEB]).unwrap().metadata.labels.unwrap();
        assert_eq!(labels[NAME].len(), LONGEST);
    }

    #[test]
    fn what_others_add_to_a_service_stays_and_what_they_change_is_put_right() {
        let asked = service("web", "weir", &[WEB, NAMES]).unwrap();
        let mut found = asked.clone();
        found.metadata.labels.as_mut().unwrap().insert("theirs".to_owned(), "x".to_owned());
        let spec = found.spec.as_mut().unwrap();
        spec.cluster_ip = Some("10.0.0.9".to_owned());
        spec.ports.as_mut().unwrap().reverse();
        assert!(fits(&found, &asked));
        let changed = |change: fn(&mut Service)| {
            let mut found = asked.clone();
            change(&mut found);
            !fits(&found, &asked)
        };
        assert!(changed(|s| drop(s.metadata.labels.as_mut().unwrap().remove("team"))));
        assert!(changed(|s| s.metadata.annotations = None));
        assert!(changed(|s| s.metadata.owner_references = None));
        assert!(changed(|s| s.spec.as_mut().unwrap().type_ = Some("NodePort".to_owned())));
        assert!(changed(|s| drop(s.spec.as_mut().unwrap().ports.as_mut().unwrap().pop())));
        let selector = BTreeMap::from([("app".to_owned(), "x".to_owned())]);
        let mut selects = asked.clone();
        selects.spec.as_mut().unwrap().selector = Some(selector);
        assert!(!fits(&selects, &asked) && !fits(&asked, &selects));
    }

    #[test]
    fn a_service_that_another_has_made_is_not_taken_for_an_own_one() {
        let made = service("web", "weir", &[WEB]).unwrap();
        assert_eq!(owner(&made, CONTROLLER).map(|one| one.uid.as_str()), Some("u-1"));
        assert_eq!(owner(&made, "x.test/other"), None);
        assert_eq!(owner(&Service::default(), CONTROLLER), None);
        assert!(is_of_class(&made, "weir") && !is_of_class(&made, "other"));
    }

    fn shown(spec: Value, balancer: Value) -> Vec<String> {
        let object = json!({ "spec": spec, "status": { "loadBalancer": { "ingress": balancer } } });
        addresses(&serde_json::from_value(object).unwrap())
    }

    #[test]
    fn the_address_of_the_cluster_does_not_stand_in_for_a_balancer() {
        let of = |kind: &str| json!({ "type": kind, "clusterIP": "10.0.0.9" });
        let none = || json!([]);
        assert_eq!(shown(of("LoadBalancer"), none()), Vec::<String>::new());
        let given = json!([{ "ip": "192.0.2.1", "hostname": "x.test" }, { "hostname": "y.test" }]);
        assert_eq!(shown(of("LoadBalancer"), given), ["192.0.2.1", "y.test"]);
        assert_eq!(shown(of("ClusterIP"), none()), ["10.0.0.9"]);
        assert_eq!(shown(of("NodePort"), none()), ["10.0.0.9"]);
        let both = json!({ "type": "LoadBalancer", "externalIPs": ["192.0.2.7", "192.0.2.1"] });
        assert_eq!(shown(both, json!([{ "ip": "192.0.2.1" }])), ["192.0.2.1", "192.0.2.7"]);
        let headless = json!({ "type": "ClusterIP", "clusterIP": "None" });
        assert_eq!(shown(headless, none()), Vec::<String>::new());
        let name = json!({ "type": "ExternalName", "externalName": "edge.test" });
        assert_eq!(shown(name, none()), ["edge.test"]);
    }
}
