//! All templates of a server.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sloplet_image::Credentials;
use sloplet_store::{Collection, Store, StoreError};
use tokio::sync::{Notify, Semaphore};

use super::cache::Cached;
use super::log::Log;
use super::names::{self, DEFAULT_TAG};
use super::record::{Build, IMAGES, KeptLog, LogEntry, Reason, Resources, Status, Template};
use super::registries::Registries;
use super::step::{MAX_STEPS, Step, StepRequest};
use super::uploads::Uploads;
use crate::engine::{new_id, new_secret};
use crate::failpoint::{Point, reach};
use crate::life::clock::now_ms;
use crate::life::{LifeError, Quota, Sandboxes, tenant_of};

/// Builds of one owner whose steps run at the same time; others of theirs wait.
const AT_ONCE: usize = 4;

/// Builds of one owner that wait or run.
const MAX_UNFINISHED: usize = 64;

/// Builds of a template that are remembered besides those that have a tag.
const REMEMBERED: usize = 20;

/// Templates of one owner.
const MAX_TEMPLATES: usize = 1000;

/// All templates of a server; clones share them.
#[derive(Clone)]
pub struct Templates(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) sandboxes: Sandboxes,
    pub(super) templates: Collection<Template>,
    pub(super) builds: Collection<Build>,
    logs: Collection<KeptLog>,
    pub(super) cache: Collection<Cached>,
    pub(super) uploads: Uploads,
    pub(super) running: Mutex<HashMap<String, Arc<Running>>>,
    /// Where each owner's builds wait for each other.
    room: Mutex<HashMap<String, Arc<Semaphore>>>,
    pub(super) registries: Registries,
    /// Held while a record is read, changed and written.
    pub(super) changing: Mutex<()>,
}

/// A build whose steps wait or run.
#[derive(Default)]
pub(super) struct Running {
    pub(super) log: Log,
    pub(super) cancelled: Notify,
}

/// A build that is asked for.
#[derive(Debug, Clone, Default)]
pub struct NewBuild {
    /// The template's name, perhaps with a tag: `name:tag`.
    pub name: String,
    /// More tags.
    pub tags: Vec<String>,
    /// What sandboxes made from it may use.
    pub resources: Resources,
}

/// What a build starts from.
#[derive(Debug, Clone)]
pub enum Source {
    /// An image of this host, or else of a registry.
    Image {
        /// Its name.
        name: String,
        /// The account at that registry.
        credentials: Option<Credentials>,
        /// Whether it may be pulled from anywhere: for those who run the server.
        anywhere: bool,
    },
    /// Another template.
    Template(String),
}

/// How an image is made.
#[derive(Debug, Clone)]
pub struct Recipe {
    /// What it starts from.
    pub source: Source,
    /// What is done.
    pub steps: Vec<Step>,
    /// Run by a shell when a sandbox starts.
    pub start: Option<String>,
    /// Run until it succeeds; then a sandbox is ready.
    pub ready: Option<String>,
    /// From this step on, nothing that an earlier build has made is used.
    pub uncached_from: usize,
}

impl Recipe {
    /// Understands the steps.
    pub fn new(
        source: Source,
        steps: &[StepRequest],
        start: Option<String>,
        ready: Option<String>,
    ) -> Result<Self, LifeError> {
        if steps.len() > MAX_STEPS {
            return Err(LifeError::Invalid(format!("a template has at most {MAX_STEPS} steps")));
        }
        let given = |command: Option<String>| command.filter(|command| !command.trim().is_empty());
        let uncached_from = steps.iter().position(|step| step.force).unwrap_or(steps.len());
        let steps = steps.iter().map(Step::parse).collect::<Result<_, _>>()?;
        Ok(Self { source, steps, start: given(start), ready: given(ready), uncached_from })
    }

    /// The same, with nothing used that an earlier build has made.
    pub fn uncached(self) -> Self {
        Self { uncached_from: 0, ..self }
    }
}

impl Templates {
    /// Reads them. Builds that an earlier server left unfinished have failed; what is left of them is removed.
    pub fn open(sandboxes: Sandboxes, store: &Store, data: &Path, registries: Registries) -> Result<Self, StoreError> {
        let inner = Inner {
            sandboxes,
            templates: store.collection(),
            builds: store.collection(),
            logs: store.collection(),
            cache: store.collection(),
            uploads: Uploads::open(data.join("uploads")),
            running: Mutex::default(),
            room: Mutex::default(),
            registries,
            changing: Mutex::default(),
        };
        let templates = Self(Arc::new(inner));
        for mut build in templates.0.builds.all()? {
            // It ended while it removed the template.
            if templates.0.templates.get(&build.template)?.is_none() {
                templates.0.logs.remove(&build.id)?;
                templates.0.builds.remove(&build.id)?;
                continue;
            }
            if matches!(build.status, Status::Waiting | Status::Building) {
                let message = "the server was restarted during the build: build again".to_owned();
                build.fail(Reason { message, step: None, entries: Vec::new() });
                templates.0.builds.put(&build)?;
            }
        }
        // It may have ended between an image and the news of it.
        if let Err(error) = templates.0.sweep_images() {
            tracing::warn!(%error, "cannot remove images of unfinished builds");
        }
        if let Err(error) = templates.0.sweep_cache() {
            tracing::warn!(%error, "cannot clean up the cache of builds");
        }
        templates.clean_up();
        Ok(templates)
    }

    /// Removes the sandboxes in which an earlier server built.
    fn clean_up(&self) {
        let mut left = self.0.sandboxes.all();
        left.retain(|sandbox| tenant_of(&sandbox.owner) != sandbox.owner);
        if left.is_empty() {
            return;
        }
        let sandboxes = self.0.sandboxes.clone();
        tokio::spawn(async move {
            for sandbox in left {
                if let Err(error) = sandboxes.destroy(&sandbox.owner, &sandbox.id).await {
                    tracing::warn!(%error, sandbox = sandbox.id, "cannot remove the sandbox of an old build");
                }
            }
        });
    }

    /// The archives that clients upload for their builds.
    pub fn uploads(&self) -> &Uploads {
        &self.0.uploads
    }

    /// Asks for a build of a template, which is made if there is none of that name.
    pub fn request(&self, owner: &str, asked: NewBuild) -> Result<(Template, Build), LifeError> {
        let (name, tag) = names::split(&asked.name);
        let name = names::name(name)?;
        let mut tags: Vec<String> = Vec::new();
        for given in tag.into_iter().chain(asked.tags.iter().map(String::as_str)) {
            let tag = names::tag(given)?;
            if !tags.contains(&tag) {
                tags.push(tag);
            }
        }
        if tags.is_empty() {
            tags.push(DEFAULT_TAG.into());
        }
        let _changing = self.0.change();
        let unfinished = |build: &&Build| matches!(build.status, Status::Waiting | Status::Building);
        if self.0.builds.of(owner)?.iter().filter(unfinished).count() >= MAX_UNFINISHED {
            return Err(LifeError::Quota(format!("{MAX_UNFINISHED} builds are unfinished: wait for them")));
        }
        let now = now_ms();
        let mut template = match self.0.templates.named(owner, &name)? {
            Some(template) => template,
            None => {
                if self.0.templates.of(owner)?.len() >= MAX_TEMPLATES {
                    return Err(LifeError::Quota(format!("there are {MAX_TEMPLATES} templates: delete some")));
                }
                Template {
                    id: new_id(),
                    owner: owner.to_owned(),
                    name,
                    public: false,
                    tags: BTreeMap::new(),
                    build_count: 0,
                    spawn_count: 0,
                    last_spawned_ms: None,
                    created_ms: now,
                    updated_ms: now,
                }
            }
        };
        template.build_count += 1;
        template.updated_ms = now;
        let build = Build {
            id: new_uuid(),
            owner: owner.to_owned(),
            template: template.id.clone(),
            status: Status::Waiting,
            reason: None,
            resources: asked.resources,
            tags,
            created_ms: now,
            updated_ms: now,
            finished_ms: None,
        };
        self.0.templates.put(&template)?;
        reach(Point::AfterTemplateRecord);
        self.0.builds.insert(&build)?;
        reach(Point::AfterBuildRecord);
        Ok((template, build))
    }

    /// Starts a build that was asked for. Its sandbox counts as one of its owner's, who may have so much.
    pub fn start(
        &self,
        owner: &str,
        template: &str,
        build: &str,
        recipe: Recipe,
        quota: &Quota,
    ) -> Result<(), LifeError> {
        let running = Arc::new(Running::default());
        let build = {
            let _changing = self.0.change();
            let mut build = self.build(owner, template, build)?;
            if build.status != Status::Waiting {
                return Err(LifeError::Invalid("this build was started already: ask for another one".into()));
            }
            for step in &recipe.steps {
                if let Step::Copy { files, source, .. } = step
                    && !self.0.uploads.has(owner, files)
                {
                    return Err(LifeError::Invalid(format!("the files of 'COPY {source}' were not uploaded")));
                }
            }
            build.status = Status::Building;
            build.updated_ms = now_ms();
            self.0.builds.put(&build)?;
            reach(Point::AfterBuildStarted);
            self.0.running().insert(build.id.clone(), running.clone());
            build
        };
        tokio::spawn(super::build::run(self.clone(), build, recipe, *quota, running));
        Ok(())
    }

    /// Finds an owner's template by id or name.
    pub fn get(&self, owner: &str, id: &str) -> Result<Template, LifeError> {
        self.find(owner, id)?.ok_or_else(|| not_found("template", id))
    }

    pub(super) fn find(&self, owner: &str, id: &str) -> Result<Option<Template>, LifeError> {
        let by_id = self.0.templates.get(id)?.filter(|template| template.owner == owner);
        Ok(match by_id {
            Some(template) => Some(template),
            None => self.0.templates.named(owner, &id.to_ascii_lowercase())?,
        })
    }

    /// An owner's templates, newest first.
    pub fn list(&self, owner: &str) -> Result<Vec<Template>, LifeError> {
        Ok(self.0.templates.of(owner)?)
    }

    /// Finds a build of an owner's template.
    pub fn build(&self, owner: &str, template: &str, build: &str) -> Result<Build, LifeError> {
        let template = self.get(owner, template)?;
        let found = self.0.builds.get(build)?.filter(|found| found.template == template.id);
        found.ok_or_else(|| not_found("build", build))
    }

    /// The builds of a template, newest first.
    pub fn builds(&self, template: &Template) -> Result<Vec<Build>, LifeError> {
        let mut builds = self.0.builds.of(&template.owner)?;
        builds.retain(|build| build.template == template.id);
        Ok(builds)
    }

    /// Lines of a build's log from an offset on, at most so many.
    pub fn log(&self, build: &Build, offset: usize, limit: usize) -> Result<Vec<LogEntry>, LifeError> {
        if let Some(running) = self.0.running().get(&build.id).cloned() {
            return Ok(running.log.read(offset, limit));
        }
        let entries = self.0.logs.get(&build.id)?.map(|log| log.entries).unwrap_or_default();
        Ok(entries.into_iter().skip(offset).take(limit).collect())
    }

    /// Lets others use it, or not.
    pub fn set_public(&self, owner: &str, id: &str, public: bool) -> Result<Template, LifeError> {
        let _changing = self.0.change();
        let mut template = self.get(owner, id)?;
        template.public = public;
        template.updated_ms = now_ms();
        self.0.templates.put(&template)?;
        Ok(template)
    }

    /// Forgets a template, with all its builds and images. Sandboxes made from it are not touched.
    pub fn remove(&self, owner: &str, id: &str) -> Result<(), LifeError> {
        let changing = self.0.change();
        let template = self.get(owner, id)?;
        let builds = self.builds(&template)?;
        self.0.templates.remove(&template.id)?;
        reach(Point::AfterTemplateForgotten);
        for build in &builds {
            self.0.forget_build(build)?;
        }
        drop(changing);
        self.0.remove_images(&builds)?;
        self.0.forget_idle_cache(owner)
    }

    /// Counts a sandbox that was made from it.
    pub fn used(&self, id: &str) -> Result<(), LifeError> {
        let _changing = self.0.change();
        if let Some(mut template) = self.0.templates.get(id)? {
            template.spawn_count += 1;
            template.last_spawned_ms = Some(now_ms());
            self.0.templates.put(&template)?;
        }
        Ok(())
    }
}

impl Inner {
    pub(super) fn change(&self) -> MutexGuard<'_, ()> {
        self.changing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where an owner's builds wait for each other; those of others do not matter to them.
    pub(super) fn room(&self, owner: &str) -> Arc<Semaphore> {
        let mut room = self.room.lock().unwrap_or_else(PoisonError::into_inner);
        room.retain(|_, room| Arc::strong_count(room) > 1);
        room.entry(owner.to_owned()).or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))).clone()
    }

    pub(super) fn running(&self) -> MutexGuard<'_, HashMap<String, Arc<Running>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Remembers how a build ended. Its template may be gone meanwhile; then nothing of it is kept.
    pub(super) fn finish(&self, mut build: Build, failure: Option<Reason>) -> Result<(), LifeError> {
        let changing = self.change();
        let running = self.running().remove(&build.id);
        let Some(mut template) = self.templates.get(&build.template)? else {
            drop(changing);
            self.remove_image(&build)?;
            return self.forget_idle_cache(&build.owner);
        };
        let now = now_ms();
        match failure {
            Some(reason) => build.fail(reason),
            None => {
                build.status = Status::Ready;
                (build.updated_ms, build.finished_ms) = (now, Some(now));
                for tag in &build.tags {
                    let tag_of_this = super::record::Tag { build: build.id.clone(), assigned_ms: now };
                    template.tags.insert(tag.clone(), tag_of_this);
                }
            }
        }
        let entries = running.map(|running| running.log.take()).unwrap_or_default();
        let log = KeptLog { id: build.id.clone(), owner: build.owner.clone(), created_ms: now, entries };
        self.logs.put(&log)?;
        template.updated_ms = now;
        reach(Point::BeforeBuildFinished);
        // A build that is ready has its tags, whatever happens in between.
        self.builds.put_with(&build, &self.templates, &template)?;
        reach(Point::AfterBuildFinished);
        let unused = self.thin_out(&template)?;
        drop(changing);
        self.remove_images(&unused)
    }

    /// The builds that no tag means any more, of which all but the last are forgotten. Their images are to be removed,
    /// which can take long: not while templates are locked.
    pub(super) fn thin_out(&self, template: &Template) -> Result<Vec<Build>, LifeError> {
        let over = |build: &Build| matches!(build.status, Status::Ready | Status::Error);
        let tagged = |build: &Build| template.tags.values().any(|tag| tag.build == build.id);
        let builds = self.builds.of(&template.owner)?;
        let mine = builds.into_iter().filter(|build| build.template == template.id && over(build) && !tagged(build));
        let unused: Vec<Build> = mine.collect();
        unused.iter().skip(REMEMBERED).try_for_each(|build| self.forget_build(build))?;
        Ok(unused)
    }

    /// Removes the images of builds.
    pub(super) fn remove_images(&self, builds: &[Build]) -> Result<(), LifeError> {
        builds.iter().try_for_each(|build| self.remove_image(build))
    }

    fn forget_build(&self, build: &Build) -> Result<(), LifeError> {
        if let Some(running) = self.running().get(&build.id) {
            running.cancelled.notify_one();
        }
        self.logs.remove(&build.id)?;
        self.builds.remove(&build.id)?;
        reach(Point::AfterBuildForgotten);
        Ok(())
    }

    /// Removes images of builds that are not remembered, or failed.
    fn sweep_images(&self) -> Result<(), LifeError> {
        let images = self.sandboxes.engine().images()?;
        for image in images.list()? {
            let Some((_, id)) = image.name.strip_prefix(IMAGES).and_then(|name| name.split_once(':')) else { continue };
            // Others were named so by somebody.
            let ours = id.len() == UUID;
            if ours && self.builds.get(id)?.is_none_or(|build| build.status != Status::Ready) {
                images.remove(&image.name)?;
            }
        }
        Ok(())
    }

    fn remove_image(&self, build: &Build) -> Result<(), LifeError> {
        match self.sandboxes.engine().images()?.remove(&build.image()) {
            Ok(()) | Err(sloplet_image::ImageError::Unknown { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Build {
    fn fail(&mut self, reason: Reason) {
        let now = now_ms();
        self.status = Status::Error;
        self.reason = Some(reason);
        (self.updated_ms, self.finished_ms) = (now, Some(now));
    }
}

pub(super) fn not_found(kind: &'static str, id: &str) -> LifeError {
    LifeError::NotFound { kind, id: names::shown(id) }
}

/// Characters of a UUID.
const UUID: usize = 36;

/// A random UUID: SDKs insist on that form.
fn new_uuid() -> String {
    let digits = new_secret();
    let variant = ["8", "9", "a", "b"][usize::from(digits.as_bytes()[39] % 4)];
    format!("{}-{}-4{}-{variant}{}-{}", &digits[..8], &digits[8..12], &digits[12..15], &digits[15..18], &digits[18..30])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_looks_like_one() {
        let uuid = new_uuid();
        let parts: Vec<usize> = uuid.split('-').map(str::len).collect();
        assert_eq!(parts, [8, 4, 4, 4, 12]);
        assert_eq!(&uuid[14..15], "4");
        assert!("89ab".contains(&uuid[19..20]));
    }
}
