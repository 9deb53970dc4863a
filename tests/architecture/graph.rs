//! The files of the workspace and the arrows between them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use crate::source::{self, Named, Source};

/// A file's number in [`Graph::files`].
pub type Id = usize;

/// One source file.
#[derive(Debug)]
pub struct File {
    /// `http` for `crates/http`.
    pub crate_name: String,
    /// `config/mod.rs`, below `src`.
    pub path: String,
    /// `config`, as other files write it after `crate::`.
    module: Vec<String>,
    pub lines: usize,
    /// Tests alone have it.
    pub test_only: bool,
    children: HashMap<String, Id>,
    source: Source,
}

impl File {
    /// The folder, or the file that stands beside the folders; the root of the crate has none.
    pub fn room(&self) -> Option<&str> {
        self.module.first().map(String::as_str)
    }
}

/// All files, and for each the files that it names.
pub struct Graph {
    pub files: Vec<File>,
    roots: BTreeMap<String, Id>,
    /// Files of the same crate and others, of product files only.
    pub arrows: Vec<BTreeSet<Id>>,
    /// Crates that a file names, as `x` of `weir_x`.
    pub crates: Vec<BTreeSet<String>>,
}

impl Graph {
    /// Reads all crates below this directory.
    pub fn read(crates: &Path) -> Graph {
        let mut graph = Graph {
            files: Vec::new(),
            roots: BTreeMap::new(),
            arrows: Vec::new(),
            crates: Vec::new(),
        };
        let mut names: Vec<_> = fs::read_dir(crates).unwrap().map(|e| e.unwrap().path()).collect();
        names.sort();
        for path in names {
            let root = ["src/lib.rs", "src/main.rs"].map(|f| path.join(f));
            let Some(root) = root.into_iter().find(|p| p.exists()) else { continue };
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            let id = graph.load(&name, &path.join("src"), root, Vec::new(), false);
            graph.roots.insert(name, id);
        }
        for id in 0..graph.files.len() {
            let (arrows, crates) = graph.named_by(id);
            graph.arrows.push(arrows);
            graph.crates.push(crates);
        }
        graph
    }

    fn load(
        &mut self,
        crate_name: &str,
        src: &Path,
        path: PathBuf,
        module: Vec<String>,
        test_only: bool,
    ) -> Id {
        let text = fs::read_to_string(&path).unwrap();
        let id = self.files.len();
        self.files.push(File {
            crate_name: crate_name.to_owned(),
            path: path.strip_prefix(src).unwrap().display().to_string(),
            module: module.clone(),
            lines: text.lines().count(),
            test_only,
            children: HashMap::new(),
            source: source::read(&text),
        });
        let beside = match path.file_stem().and_then(|s| s.to_str()) {
            Some("mod" | "lib" | "main") => path.with_file_name(""),
            _ => path.with_extension(""),
        };
        for (name, for_tests) in self.files[id].source.modules.clone() {
            let below = beside.join(&name);
            let found = [below.with_extension("rs"), below.join("mod.rs")];
            // A `#[path]` names no product file.
            let Some(path) = found.into_iter().find(|p| p.exists()) else { continue };
            let mut inner = module.clone();
            inner.push(name.clone());
            let child = self.load(crate_name, src, path, inner, test_only || for_tests);
            self.files[id].children.insert(name, child);
        }
        id
    }

    fn named_by(&self, id: Id) -> (BTreeSet<Id>, BTreeSet<String>) {
        let (mut arrows, mut crates) = (BTreeSet::new(), BTreeSet::new());
        let file = &self.files[id];
        // A `pub use` passes a name on. What names it has the arrow.
        let imported = file.source.imports.iter().filter(|i| !i.public).map(|import| &import.named);
        for named in imported.chain(&file.source.paths) {
            arrows.extend(self.find(id, named, 0));
            crates.extend(self.crate_of(id, named));
        }
        for word in &file.source.listed {
            arrows.extend(file.children.get(word));
        }
        arrows.remove(&id);
        (arrows, crates)
    }

    /// The other crate that a path leads into, if its own words say so.
    fn crate_of(&self, id: Id, named: &Named) -> Option<String> {
        let name = named.path.first()?.strip_prefix("weir_")?;
        (self.roots.contains_key(name) && name != self.files[id].crate_name)
            .then(|| name.to_owned())
    }

    /// The file that a path leads to, as this file writes it.
    fn find(&self, from: Id, named: &Named, tries: usize) -> Option<Id> {
        let file = &self.files[from];
        let root = self.roots[&file.crate_name];
        let first = named.path.first()?.as_str();
        let rest = &named.path[1..];
        match first {
            "crate" => self.walk(root, rest, tries),
            "self" => self.walk(from, rest, tries),
            "super" => {
                let ups = named.path.iter().take_while(|w| *w == "super").count();
                let leaves = ups.saturating_sub(named.depth);
                let mut at = root;
                let above = file.module.len().saturating_sub(leaves);
                for name in &file.module[..above] {
                    at = *self.files[at].children.get(name)?;
                }
                self.walk(at, &named.path[ups..], tries)
            }
            _ => match first.strip_prefix("weir_").and_then(|name| self.roots.get(name)) {
                Some(other) => self.walk(*other, rest, tries),
                None => self.local(from, &named.path, tries),
            },
        }
    }

    /// A path that begins with a name of the file itself.
    fn local(&self, at: Id, path: &[String], tries: usize) -> Option<Id> {
        let file = &self.files[at];
        if let Some(child) = file.children.get(&path[0]) {
            return self.walk(*child, &path[1..], tries);
        }
        let import = file.source.imports.iter().find(|i| i.alias == path[0])?;
        self.through(at, &import.named, &path[1..], tries)
    }

    fn through(&self, at: Id, named: &Named, rest: &[String], tries: usize) -> Option<Id> {
        if tries > 8 {
            return None;
        }
        let mut path = named.path.clone();
        path.extend_from_slice(rest);
        self.find(at, &Named { path, depth: named.depth }, tries + 1)
    }

    /// The file that has what a path names below a module: through folders, and through `use`.
    fn walk(&self, at: Id, path: &[String], tries: usize) -> Option<Id> {
        let Some(name) = path.first() else { return Some(at) };
        let file = &self.files[at];
        if let Some(child) = file.children.get(name) {
            return self.walk(*child, &path[1..], tries);
        }
        if file.source.items.contains(name) {
            return Some(at);
        }
        if let Some(import) = file.source.imports.iter().find(|i| i.alias == *name) {
            let external = !["crate", "self", "super"].contains(&import.named.path[0].as_str())
                && !import.named.path[0].starts_with("weir_")
                && !file.children.contains_key(&import.named.path[0]);
            return match external {
                true => Some(at),
                false => self.through(at, &import.named, &path[1..], tries),
            };
        }
        let globs = file.source.imports.iter().filter(|i| i.alias == "*");
        for glob in globs {
            if let Some(found) = self.through(at, &glob.named, path, tries)
                && self.files[found].source.items.contains(name)
            {
                return Some(found);
            }
        }
        Some(at)
    }

    /// Product files of a crate.
    pub fn of<'a>(&'a self, crate_name: &'a str) -> impl Iterator<Item = Id> + 'a {
        (0..self.files.len()).filter(move |id| {
            let file = &self.files[*id];
            file.crate_name == crate_name && !file.test_only
        })
    }

    /// The names of all crates.
    pub fn crate_names(&self) -> impl Iterator<Item = &str> {
        self.roots.keys().map(String::as_str)
    }

    /// The largest circle of imports in a crate: files that each reach all others of it.
    pub fn largest_circle(&self, crate_name: &str) -> Vec<Id> {
        let files: BTreeSet<Id> = self.of(crate_name).collect();
        let mut back: HashMap<Id, Vec<Id>> = HashMap::new();
        for &id in &files {
            for &to in self.arrows[id].intersection(&files) {
                back.entry(to).or_default().push(id);
            }
        }
        let reach = |from: Id, next: &dyn Fn(Id) -> Vec<Id>| {
            let (mut seen, mut todo) = (BTreeSet::from([from]), vec![from]);
            while let Some(id) = todo.pop() {
                todo.extend(next(id).into_iter().filter(|to| seen.insert(*to)));
            }
            seen
        };
        let forward = |id: Id| self.arrows[id].intersection(&files).copied().collect();
        let backward = |id: Id| back.get(&id).cloned().unwrap_or_default();
        let mut left = files.clone();
        let mut largest = Vec::new();
        while let Some(&id) = left.first() {
            let circle: Vec<Id> =
                reach(id, &forward).intersection(&reach(id, &backward)).copied().collect();
            left.retain(|other| !circle.contains(other));
            if circle.len() > largest.len() {
                largest = circle;
            }
        }
        match largest.len() {
            1 => Vec::new(),
            _ => largest,
        }
    }
}
