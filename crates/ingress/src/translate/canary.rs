//! Canaries: of the requests for a path, some go to the servers of another Ingress.

use weir_conf::Directive;

use super::hosts::{CanaryRoute, Route};
use super::{Work, line};
use crate::annotations::{Canary, Chosen};
use crate::report::Severity;

impl Work<'_> {
    /// What names the group for each request: the main one's name, or a variable.
    pub(super) fn with_canary(&mut self, route: &Route<'_>, main: String, key: &str) -> String {
        let Some(CanaryRoute { source, service, port }) = &route.canary else { return main };
        let Some(canary) = &source.options.canary else { return main };
        let id = &source.id;
        let Some(group) = self.group(id, Some(source), &id.namespace, service, port) else {
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
        let (variable, list) = variables(canary, &main, &group, key);
        self.share(id, format!("canary {key}"), list);
        variable
    }
}

/// Maps from the last rule to the first, each with the next one's variable for what it does not decide.
fn variables(canary: &Canary, main: &str, group: &str, key: &str) -> (String, Vec<Directive>) {
    let mut list = Vec::new();
    let (part, whole) = canary.weight;
    let mut rest = main.to_owned();
    if part > 0 {
        let variable = format!("$canary_weight_{key}");
        // Hundredths of a percent are all that the directive takes.
        let share = part.saturating_mul(10_000) / whole;
        let share = format!("{}.{:02}%", share / 100, share % 100);
        let rows = match part >= whole {
            true => vec![line("*", [group])],
            false => vec![line(&share, [group]), line("*", [main])],
        };
        list.push(line("split_clients", ["$request_id", &variable]).with_block(rows));
        rest = variable;
    }
    let mut choose = |source: String, what: &str, chosen: &Chosen| {
        let variable = format!("$canary_{what}_{key}");
        let mut rows = vec![line("default", [rest.as_str()])];
        match chosen {
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
        choose(format!("$cookie_{name}"), "cookie", &Chosen::Word);
    }
    if let Some((name, chosen)) = &canary.header {
        choose(format!("$http_{}", name.to_lowercase().replace('-', "_")), "header", chosen);
    }
    (rest, list)
}
