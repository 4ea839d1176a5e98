# SPDX-License-Identifier: AGPL-3.0-or-later
# What the Cargo workspace consists of, read from its manifests: the crates, what each depends on, and for any set of crates the
# sources that their build needs and no others. A page, a test or another tool is no part of those, so that changing it changes no
# derivation.
{ lib, root }:
let
  inherit (builtins)
    attrNames
    attrValues
    concatMap
    elem
    filter
    foldl'
    fromTOML
    hasAttr
    listToAttrs
    pathExists
    readDir
    readFile
    ;
  at = path: root + "/${path}";
  rootManifest = fromTOML (readFile (at "Cargo.toml"));
  declared = rootManifest.workspace.dependencies;

  # The folders that a member pattern names; the only pattern in use is `FOLDER/*`.
  expand =
    member:
    if lib.hasSuffix "/*" member then
      let
        folder = lib.removeSuffix "/*" member;
        entries = readDir (at folder);
        isCrate = name: entries.${name} == "directory" && pathExists (at "${folder}/${name}/Cargo.toml");
      in
      map (name: "${folder}/${name}") (filter isCrate (attrNames entries))
    else
      lib.optional (pathExists (at "${member}/Cargo.toml")) member;
  members = concatMap expand rootManifest.workspace.members;

  dropLast = list: lib.genList (lib.elemAt list) (lib.length list - 1);
  # `a/b` and `../c` make `a/c`.
  join =
    folder: relative:
    let
      step = parts: part: if part == ".." then dropLast parts else parts ++ [ part ];
      parts = foldl' step (lib.splitString "/" folder) (filter (p: p != "." && p != "") (lib.splitString "/" relative));
    in
    lib.concatStringsSep "/" parts;

  crate =
    folder:
    let
      manifest = fromTOML (readFile (at "${folder}/Cargo.toml"));
      tables = [ manifest ] ++ attrValues (manifest.target or { });
      of = kind: foldl' (all: table: all // (table.${kind} or { })) { } tables;
      # A dependency of the workspace or on a folder, or one on a registry.
      place =
        name: spec:
        let
          base = if spec.workspace or false then declared.${name} else spec;
        in
        if !(lib.isAttrs base && base ? path) then
          null
        else if spec.workspace or false then
          base.path
        else
          join folder base.path;
      split = specs: {
        local = filter (p: p != null) (map (name: place name specs.${name}) (attrNames specs));
        external = lib.filterAttrs (name: spec: place name spec == null) specs;
      };
    in
    {
      inherit folder;
      inherit (manifest.package) name;
      bins =
        if manifest ? bin then
          map (bin: bin.name) manifest.bin
        else
          lib.optional (pathExists (at "${folder}/src/main.rs")) manifest.package.name;
      normal = split (of "dependencies");
      build = split (of "build-dependencies");
      dev = split (of "dev-dependencies");
    };

  crates = listToAttrs (map (folder: lib.nameValuePair folder (crate folder)) members);

  # The folders and all that they depend on, those of tests too where `dev` says so.
  closure =
    {
      folders,
      dev ? false,
    }:
    let
      next =
        folder:
        let
          c = crates.${folder};
        in
        c.normal.local ++ c.build.local ++ lib.optionals dev c.dev.local;
      grow =
        seen: waiting:
        if waiting == [ ] then
          seen
        else
          let
            new = filter (folder: !(elem folder seen)) (lib.unique waiting);
          in
          grow (seen ++ new) (concatMap next new);
    in
    lib.sort (a: b: a < b) (grow [ ] folders);

  # One specification of a crate of a registry, with all features that anyone asks for.
  merge =
    name: spec: known:
    let
      table = x: if lib.isAttrs x then x else { version = x; };
      base = if spec.workspace or false then table declared.${name} else table spec;
      extra = if spec.workspace or false then spec.features or [ ] else [ ];
      all = lib.unique ((known.features or [ ]) ++ (base.features or [ ]) ++ extra);
    in
    removeAttrs base [ "optional" ] // { features = lib.sort (a: b: a < b) all; };
  union =
    sets:
    foldl' (all: set: all // lib.mapAttrs (name: spec: merge name spec (all.${name} or { })) set) { } sets;

  # A manifest that depends on every crate of a registry that building `folders` needs, and on nothing else: what the derivation
  # of dependencies builds. It follows from names, versions, features and profiles alone.
  dependencies =
    {
      folders,
      dev ? false,
    }:
    let
      all = map (folder: crates.${folder}) (closure {
        inherit folders dev;
      });
    in
    {
      package = {
        name = "dependencies";
        version = "0.0.0";
        edition = "2024";
      };
      workspace.resolver = rootManifest.workspace.resolver;
      dependencies = union (map (c: c.normal.external) all ++ lib.optionals dev (map (c: c.dev.external) all));
      build-dependencies = union (map (c: c.build.external) all);
      inherit (rootManifest) profile;
    };

  # What build scripts read outside of their crates.
  beside = {
    "vmm/artifact" =
      let
        entries = if pathExists (at "contracts") then readDir (at "contracts") else { };
      in
      [ "contracts/lib" "contracts/profile" ] ++ map (name: "contracts/${name}") (filter (lib.hasSuffix ".ncl") (attrNames entries));
  };

  # Code and build script of each folder, or all of it where `dev` says that tests are wanted. Every member's manifest is there: Cargo.lock
  # is that of the whole workspace, and Cargo holds it against all manifests.
  sources =
    {
      folders,
      dev ? false,
      extra ? [ ],
    }:
    let
      kept = closure { inherit folders dev; };
      parts = if dev then [ "" ] else [ "/build.rs" "/src" ];
      wanted =
        [ "Cargo.toml" "Cargo.lock" ]
        ++ map (member: "${member}/Cargo.toml") members
        ++ concatMap (folder: map (part: "${folder}${part}") parts ++ beside.${folder} or [ ]) kept
        ++ extra;
      prefix = toString root + "/";
      below = path: part: path == part || lib.hasPrefix "${part}/" path;
      above = path: part: lib.hasPrefix "${path}/" part;
    in
    builtins.path {
      path = root;
      name = "chaoscontrol-source";
      filter =
        path: type:
        let
          relative = lib.removePrefix prefix path;
        in
        lib.any (part: below relative part || (type == "directory" && above relative part)) wanted;
    };

  # Members whose code is left out. Cargo wants each to have some: a build puts empty files in its place.
  absent = kept: filter (member: !(elem member kept)) members;
  # What Cargo.lock says about crates of registries, without the workspace's own: a crate of ours that comes or goes changes no
  # build of theirs.
  lock = fromTOML (readFile (at "Cargo.lock"));
  external = filter (package: package ? source) lock.package;
  lockOf = package: import ./toml.nix { inherit (lock) version; inherit package; };
  externalLock = lockOf external;

  # The same about crates with these names and all that they lead to: what one layer builds does not change with what another one needs.
  # A dependency in the lock is "name", or "name version" where there are several.
  lockFor =
    names:
    let
      versions = lib.foldl' (all: package: all // { ${package.name} = (all.${package.name} or [ ]) ++ [ package ]; }) { } external;
      named =
        dependency:
        let
          parts = lib.splitString " " dependency;
          all = versions.${lib.head parts} or [ ];
        in
        if lib.length parts == 1 then all else filter (package: package.version == lib.elemAt parts 1) all;
      entry = package: { key = "${package.name} ${package.version}"; inherit package; };
      reached = builtins.genericClosure {
        startSet = map entry (concatMap named names);
        operator = { package, ... }: map entry (concatMap named (package.dependencies or [ ]));
      };
      keys = listToAttrs (map ({ key, ... }: lib.nameValuePair key true) reached);
    in
    lockOf (filter (package: hasAttr (entry package).key keys) external);
in
{
  inherit
    absent
    externalLock
    lockFor
    closure
    crates
    dependencies
    members
    rootManifest
    sources
    ;
  version = rootManifest.workspace.package.version;
  inDirectory = folder: filter (member: lib.hasPrefix "${folder}/" member) members;
  has = folder: hasAttr folder crates;
}
