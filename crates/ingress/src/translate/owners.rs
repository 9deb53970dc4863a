//! The object that asked for each directive. If weir refuses a line, that object alone is left out.

use std::collections::HashMap;
use std::sync::Arc;

use weir_conf::{Directive, DirectiveBody};

use crate::report::ObjectId;

/// The bit that marks a directive's file number as the index of an owner. Translated directives
/// come from no file.
const MARK: u32 = 1 << 31;

/// The kind of an [`ObjectId`] that stands for a key of the controller's ConfigMap. Its name is the
/// key.
pub(crate) const CONFIG_MAP_KEY: &str = "key of the ConfigMap";

/// A key of the controller's ConfigMap, as an owner.
pub(super) fn key_owner(key: &str) -> ObjectId {
    ObjectId { kind: CONFIG_MAP_KEY, namespace: String::new(), name: key.to_owned() }
}

/// The owners of the directives of a part.
#[derive(Debug, Default)]
pub(super) struct Owners {
    list: Vec<Arc<ObjectId>>,
    by_id: HashMap<Arc<ObjectId>, u32>,
}

impl Owners {
    /// Marks directives and their blocks with an owner. Directives that have one keep it.
    pub(super) fn mark(&mut self, id: &ObjectId, list: &mut [Directive]) {
        let at = match self.by_id.get(id) {
            Some(at) => *at,
            None => {
                let Some(at) = u32::try_from(self.list.len()).ok().filter(|at| *at < MARK - 1)
                else {
                    return;
                };
                let id = Arc::new(id.clone());
                self.list.push(id.clone());
                self.by_id.insert(id, at);
                at
            }
        };
        stamp(MARK | at, list);
    }

    /// The owner of a directive.
    pub(super) fn of(&self, directive: &Directive) -> Option<&Arc<ObjectId>> {
        let file = directive.end.file;
        if file == u32::MAX || file & MARK == 0 {
            return None;
        }
        self.list.get((file & !MARK) as usize)
    }
}

fn stamp(file: u32, list: &mut [Directive]) {
    for directive in list {
        if directive.end.file == u32::MAX || directive.end.file & MARK == 0 {
            directive.end.file = file;
        }
        if let DirectiveBody::Block(inner) = &mut directive.body {
            stamp(file, inner.edit());
        }
    }
}
