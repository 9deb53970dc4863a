//! Which object asked for a directive: when the server refuses a configuration, that object alone is left out.

use std::collections::HashMap;

use weir_conf::{Directive, DirectiveBody};

use crate::report::ObjectId;

/// Marks in the places of directives, whose file is no file here.
const MARK: u32 = 1 << 31;

/// The objects that asked for directives.
#[derive(Clone, Debug, Default)]
pub struct Owners {
    list: Vec<ObjectId>,
    by_id: HashMap<ObjectId, u32>,
}

impl Owners {
    /// Marks directives, and what is in them, with an object; marks that are there stay.
    pub fn mark(&mut self, id: &ObjectId, list: &mut [Directive]) {
        let at = match self.by_id.get(id) {
            Some(at) => *at,
            None => {
                let Some(at) = u32::try_from(self.list.len()).ok().filter(|at| *at < MARK - 1)
                else {
                    return;
                };
                self.list.push(id.clone());
                self.by_id.insert(id.clone(), at);
                at
            }
        };
        stamp(MARK | at, list);
    }

    /// The object that asked for a directive.
    pub fn of(&self, directive: &Directive) -> Option<&ObjectId> {
        let file = directive.end.file;
        if file == u32::MAX || file & MARK == 0 {
            return None;
        }
        self.list.get((file & !MARK) as usize)
    }

    /// The object to which a line of the tree's text belongs: of the innermost directive there that has one. `text` is
    /// the tree again, read from the text.
    pub fn at(&self, line: u32, tree: &[Directive], text: &[Directive]) -> Option<&ObjectId> {
        let mut both = tree.iter().zip(text);
        let (made, read) =
            both.find(|(_, read)| (read.name.pos.line..=read.close.line).contains(&line))?;
        self.at(line, made.block(), read.block()).or_else(|| self.of(made))
    }
}

fn stamp(file: u32, list: &mut [Directive]) {
    for directive in list {
        if directive.end.file == u32::MAX || directive.end.file & MARK == 0 {
            directive.end.file = file;
        }
        if let DirectiveBody::Block(inner) = &mut directive.body {
            stamp(file, inner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::{Settings, Snapshot, translate};

    #[test]
    fn each_line_of_a_location_leads_to_the_ingress_that_asked_for_it() {
        let mut snapshot = Snapshot::default();
        for name in ["one", "two"] {
            let object = serde_json::json!({ "kind": "Ingress", "metadata": { "name": name, "namespace": "a" },
                "spec": { "rules": [{ "host": "a.test", "http": { "paths": [{ "path": format!("/{name}"), "pathType": "Exact",
                "backend": { "service": { "name": "app", "port": { "number": 80 } } } }] } }] } });
            assert_eq!(snapshot.add_text(&object.to_string()), Vec::<String>::new());
        }
        let settings = Settings { without_class: true, ..Settings::default() };
        let made = translate(&snapshot, &settings);
        let text = weir_conf::print(&made.tree).unwrap();
        let read = weir_conf::read_text(Path::new("printed.conf"), &text).main;
        let text = String::from_utf8(text).unwrap();
        let owner = |of: &str, after: u32| {
            let line = text.lines().position(|line| line.contains(of)).unwrap() as u32 + 1 + after;
            made.owners.at(line, &made.tree, &read).map(|id| id.name.clone())
        };
        assert_eq!(owner("location = /one", 0).as_deref(), Some("one"));
        assert_eq!(owner("location = /two", 1).as_deref(), Some("two"));
        assert_eq!(owner("server_name a.test", 0).as_deref(), Some("one"));
        assert_eq!(owner("server_tokens", 0), None);
        assert_eq!(owner("server_name _", 0), None);
    }
}
