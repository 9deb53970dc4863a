//! The inode numbers of files. A number stays with its file through renames, as long as the file
//! has a name. So a file that is looked up twice is the same file.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The number of the directory that is mounted.
const ROOT: u64 = 1;

/// Files by number and by name.
#[derive(Debug)]
pub(crate) struct FileNumbers {
    root: PathBuf,
    nodes: HashMap<u64, Node>,
    numbers: HashMap<Node, u64>,
    last: u64,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Node {
    parent: u64,
    name: OsString,
}

impl Node {
    fn new(parent: u64, name: &OsStr) -> Node {
        Node { parent, name: name.to_owned() }
    }
}

impl FileNumbers {
    pub(crate) fn new(root: PathBuf) -> FileNumbers {
        FileNumbers { root, nodes: HashMap::new(), numbers: HashMap::new(), last: ROOT }
    }

    /// The path of a file; `None` if it has lost its name.
    pub(crate) fn path(&self, number: u64) -> Option<PathBuf> {
        let mut names = Vec::new();
        let mut at = number;
        while at != ROOT {
            let node = self.nodes.get(&at)?;
            names.push(node.name.as_os_str());
            at = node.parent;
        }
        names.push(self.root.as_os_str());
        Some(names.iter().rev().map(Path::new).collect())
    }

    /// The path of a name in a directory.
    pub(crate) fn child(&self, parent: u64, name: &OsStr) -> Option<PathBuf> {
        self.path(parent).map(|path| path.join(name))
    }

    /// The number of a name, which it keeps.
    pub(crate) fn number(&mut self, parent: u64, name: &OsStr) -> u64 {
        let node = Node::new(parent, name);
        if let Some(number) = self.numbers.get(&node) {
            return *number;
        }
        self.last += 1;
        self.nodes.insert(self.last, node.clone());
        self.numbers.insert(node, self.last);
        self.last
    }

    /// A name was removed.
    pub(crate) fn removed(&mut self, parent: u64, name: &OsStr) {
        if let Some(number) = self.numbers.remove(&Node::new(parent, name)) {
            self.nodes.remove(&number);
        }
    }

    /// A file was renamed; a file that had the new name has none now.
    pub(crate) fn renamed(&mut self, from: (u64, &OsStr), to: (u64, &OsStr)) {
        let (from, to) = (Node::new(from.0, from.1), Node::new(to.0, to.1));
        if from == to {
            return;
        }
        self.removed(to.parent, &to.name);
        if let Some(number) = self.numbers.remove(&from) {
            self.nodes.insert(number, to.clone());
            self.numbers.insert(to, number);
        }
    }
}
