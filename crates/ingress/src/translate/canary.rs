//! Canaries: some requests for a path go to the upstream of another Ingress.

use weir_conf::Directive;

use super::hosts::{CanaryRoute, Route};
use super::lines::{counted_if, line};
use super::location_variables::ALTERNATIVE;
use super::made::Made;
use super::work::Work;
use crate::annotations::{Affinity, Canary, Chosen};
use crate::report::Severity;

impl Work<'_> {
    /// What names the upstream group of each request: the main group's name, or a variable that
    /// chooses. Requests that the canary gets are counted as its own.
    pub(super) fn with_canary(
        &mut self,
        route: &Route,
        main: String,
        key: &str,
        made: &mut Made,
    ) -> String {
        let Some(of) = &route.canary else { return main };
        let CanaryRoute { source, service, port } = &**of;
        let Some(canary) = &source.options.canary else { return main };
        let id = &source.id;
        // The cookie of the main Ingress binds clients to the canary, too. Its values have the
        // prefix `canary-` there.
        let affinity = route
            .source
            .options
            .affinity
            .clone()
            .filter(|_| source.options.sticky_canary && source.options.affinity.is_none());
        let bound = affinity.as_ref().map(|affinity| {
            let affinity = Affinity { canary: true, ..affinity.clone() };
            source.bound(affinity, &route.rule)
        });
        let of = bound.as_ref().unwrap_or(source);
        let Some(group) = self.group(id, Some(of), &id.namespace, service, port) else {
            return main;
        };
        if group == main {
            self.say(
                id,
                Severity::Warning,
                "CanaryOfItself",
                "canary",
                "it has the servers of the main Ingress: it changes nothing",
            );
            return main;
        }
        let (part, whole) = canary.weight;
        if part > 0 && hundredths(part, whole) == 0 {
            let what = "a share is at least 0.01 % of the requests, and it has that";
            self.say(id, Severity::Warning, "SmallWeight", "canary-weight", what);
        }
        let cookie = affinity.as_ref().and_then(|affinity| affinity.words.get(1));
        let (variable, mut list) = variables(canary, &main, &group, key, cookie);
        let chosen = format!("$canary_chosen_{key}");
        let name = format!("{}-{service}-{port}", id.namespace);
        let rows = vec![line("default", [""]), line(&group, [name.as_str()])];
        list.push(line("map", [variable.as_str(), &chosen]).with_block(rows));
        self.share(id, format!("canary {key}"), list);
        made.inside.push(counted_if(&route.source.id, &format!("{service}:{port}"), &chosen));
        if self.base.used_variables.contains(&ALTERNATIVE) {
            made.inside.push(line("set", [format!("${ALTERNATIVE}").as_str(), &chosen]));
        }
        variable
    }
}

/// The share of a weight, in hundredths of a percent.
fn hundredths(part: u64, whole: u64) -> u64 {
    part.saturating_mul(10_000) / whole
}

/// Maps from the last rule to the first. Each falls back to the variable of the next rule.
fn variables(
    canary: &Canary,
    main: &str,
    group: &str,
    key: &str,
    bound: Option<&String>,
) -> (String, Vec<Directive>) {
    let mut list = Vec::new();
    let (part, whole) = canary.weight;
    let mut rest = main.to_owned();
    if part > 0 {
        let variable = format!("$canary_weight_{key}");
        // `split_clients` takes hundredths of a percent.
        let share = hundredths(part, whole).max(1);
        let share = format!("{}.{:02}%", share / 100, share % 100);
        let rows = match part >= whole {
            true => vec![line("*", [group])],
            false => vec![line(&share, [group]), line("*", [main])],
        };
        list.push(line("split_clients", ["$request_id", &variable]).with_block(rows));
        rest = variable;
    }
    let cookie = |name: &str, value: &str| format!("~(?:^|;\\s*)\\Q{name}\\E={value}");
    let mut choose = |source: String, what: &str, chosen: &Chosen, name: &str| {
        let variable = format!("$canary_{what}_{key}");
        let mut rows = vec![line("default", [rest.as_str()])];
        match chosen {
            Chosen::Word if what == "cookie" => {
                rows.push(line(&cookie(name, "always\\s*(?:;|$)"), [group]));
                rows.push(line(&cookie(name, "never\\s*(?:;|$)"), [main]));
            }
            Chosen::Nothing if what == "bound" => {
                rows.push(line(&cookie(name, "canary-"), [group]));
                rows.push(line(&cookie(name, "[0-9a-f]{32}"), [main]));
            }
            Chosen::Nothing => rows = vec![line("default", [main]), line("", [rest.as_str()])],
            Chosen::Word => {
                rows.push(line("~^always$", [group]));
                rows.push(line("~^never$", [main]));
            }
            Chosen::Value(value) => rows.push(line(&format!("~^\\Q{value}\\E$"), [group])),
            Chosen::Pattern(pattern) => rows.push(line(&format!("~{pattern}"), [group])),
        }
        list.push(line("map", [source.as_str(), &variable]).with_block(rows));
        rest = variable;
    };
    if let Some(name) = &canary.cookie {
        choose("$http_cookie".to_owned(), "cookie", &Chosen::Word, name);
    }
    if let Some((name, chosen)) = &canary.header {
        let header = format!("$http_{}", name.to_lowercase().replace('-', "_"));
        choose(header, "header", chosen, name);
    }
    if let Some(name) = bound {
        choose("$http_cookie".to_owned(), "bound", &Chosen::Nothing, name);
    }
    (rest, list)
}
