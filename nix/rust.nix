# SPDX-License-Identifier: AGPL-3.0-or-later
# Builds of the workspace's crates, in layers that are handed on as Cargo target folders: the crates of registries, our libraries,
# and on top of those a thin derivation a tool. Each layer gives what it built as `target.tar.zst`.
{
  pkgs,
  platform,
  workspace,
}:
let
  inherit (pkgs) lib;
  toTOML = import ./toml.nix;
  crates = pkgs.rustPlatform.importCargoLock { lockFileContents = workspace.externalLock; };

  # All layers build below the same paths and with the same flags, or Cargo would build everything again: the crates of registries, too,
  # have one path, whichever of them a layer is given. The remapping keeps these paths out of binaries.
  start = vendor: ''
    export CARGO_HOME=$NIX_BUILD_TOP/cargo-home CARGO_TARGET_DIR=$NIX_BUILD_TOP/target CARGO_TERM_COLOR=never
    # Binaries are stripped, and what failed says its line without that.
    export CARGO_PROFILE_RELEASE_DEBUG=false CARGO_PROFILE_DEV_DEBUG=false
    mkdir -p $CARGO_HOME $CARGO_TARGET_DIR
    ln -s ${vendor} $NIX_BUILD_TOP/crates
    printf '[source.crates-io]\nreplace-with = "vendored"\n[source.vendored]\ndirectory = "%s"\n' $NIX_BUILD_TOP/crates > $CARGO_HOME/config.toml
    export RUSTFLAGS="--remap-path-prefix=$NIX_BUILD_TOP/crates=/cargo --remap-path-prefix=$NIX_BUILD_TOP/source=/chaoscontrol"
    cargoFlags="--offline --quiet -j $NIX_BUILD_CORES"
  '';
  # Cargo compares times: sources keep the store's, which are older than whatever was built from them.
  unpack = place: src: folders: ''
    cp -r --preserve=mode,timestamps ${src} $NIX_BUILD_TOP/${place}
    chmod -R u+w $NIX_BUILD_TOP/${place}
    cd $NIX_BUILD_TOP/${place}
    for member in ${toString (workspace.absent folders)}; do
      mkdir -p $member/src
      touch $member/src/lib.rs $member/src/main.rs
    done
    find . -print0 | xargs -0 touch -h -d @1
  '';
  resume = layer: "zstd -dc ${layer}/target.tar.zst | tar xf - -C $CARGO_TARGET_DIR";
  keep = ''
    mkdir -p $out
    tar cf - --sort=name --mtime=@1 --owner=0 --group=0 --numeric-owner -C $CARGO_TARGET_DIR . | zstd -q -3 -T1 -o $out/target.tar.zst
  '';

  layer =
    {
      name,
      tools ? [ ],
      libraries ? [ ],
      vendor ? crates,
      script,
      passthru ? { },
      meta ? { },
      environment ? { },
    }:
    pkgs.stdenv.mkDerivation (
      {
        pname = name;
        inherit (workspace) version;
        nativeBuildInputs = [
          pkgs.cargo
          pkgs.rustc
          pkgs.zstd
        ]
        ++ tools;
        buildInputs = libraries;
        buildCommand = start vendor + script;
        inherit passthru meta;
      }
      // environment
    );

  # The crates of registries that building `folders` needs. The key is what Cargo.lock says about them, and their names,
  # versions, features and profiles in the manifests.
  dependencies =
    {
      name,
      folders,
      dev ? false,
      tools ? [ ],
      build,
    }:
    let
      manifest = workspace.dependencies { inherit folders dev; };
      specs = manifest.dependencies // manifest.build-dependencies;
      lock = workspace.lockFor (map (name: specs.${name}.package or name) (lib.attrNames specs));
    in
    layer {
      inherit name tools;
      vendor = pkgs.rustPlatform.importCargoLock { lockFileContents = lock; };
      environment = {
        inherit lock;
        manifest = toTOML manifest;
        passAsFile = [
          "lock"
          "manifest"
        ];
      };
      script = ''
        mkdir -p $NIX_BUILD_TOP/source/src
        cd $NIX_BUILD_TOP/source
        cp $manifestPath Cargo.toml
        cp $lockPath Cargo.lock
        touch src/lib.rs
        echo 'fn main() {}' > build.rs
        ${build}
        ${keep}
      '';
    };

  isContract = folder: folder == "tools/contract";
  toolFolders = lib.filter (folder: workspace.crates.${folder}.bins != [ ] && !isContract folder) (
    workspace.inDirectory "tools"
  );
  # What the tools share: no test, no other tool.
  libraryFolders = lib.filter (folder: workspace.crates.${folder}.bins == [ ]) (
    workspace.closure { folders = toolFolders; }
  );
  packagesOf = folders: lib.concatMapStringsSep " " (folder: "-p ${workspace.crates.${folder}.name}") folders;

  # What all tools need, chaos-contract among them, and on top of it what the others need.
  commonDependencies = dependencies {
    name = "chaoscontrol-common-dependencies";
    folders = [ "vmm/artifact" "tools/cli" ];
    build = "cargo build --release $cargoFlags";
  };
  toolDependencies = dependencies {
    name = "chaoscontrol-dependencies";
    folders = toolFolders;
    build = ''
      ${resume commonDependencies}
      cargo build --release $cargoFlags
    '';
  };
  libraries = layer {
    name = "chaoscontrol-libraries";
    script = ''
      ${unpack "source" (workspace.sources { folders = libraryFolders; }) libraryFolders}
      ${resume toolDependencies}
      cargo build --release --locked $cargoFlags ${packagesOf libraryFolders}
      ${keep}
    '';
  };

  # One tool: its binary, and with `--generate` its man page and completions.
  tool =
    folder:
    let
      inherit (workspace.crates.${folder}) name bins;
      folders = libraryFolders ++ workspace.closure { folders = [ folder ]; };
    in
    toolOn libraries name bins folders;
  toolOn =
    base: name: bins: folders:
    layer {
      inherit name;
      meta = {
        mainProgram = name;
        license = lib.licenses.agpl3Plus;
        platforms = [ "x86_64-linux" ];
      };
      script = ''
        ${unpack "source" (workspace.sources { inherit folders; }) folders}
        ${resume base}
        cargo build --release --locked $cargoFlags -p ${name}
        mkdir -p $out/bin
        for bin in ${toString bins}; do
          cp $CARGO_TARGET_DIR/release/$bin $out/bin/
          strip -S $out/bin/$bin
          ${generate}
        done
      '';
    };
  # The one binary that links Nickel: dependencies of its own, which no other tool's can change.
  contractFolder = "tools/contract";
  contractDependencies = dependencies {
    name = "chaoscontrol-contract-dependencies";
    folders = [ contractFolder ];
    build = ''
      ${resume commonDependencies}
      cargo build --release $cargoFlags
    '';
  };
  contract =
    let
      inherit (workspace.crates.${contractFolder}) name;
      folders = workspace.closure { folders = [ contractFolder ]; };
    in
    toolOn contractDependencies name [ name ] folders;

  generate = ''
    man=$out/share/man/man1 bash=$out/share/bash-completion/completions
    zsh=$out/share/zsh/site-functions fish=$out/share/fish/vendor_completions.d
    if $out/bin/$bin --generate man > page 2>/dev/null; then
      mkdir -p $man $bash $zsh $fish
      mv page $man/$bin.1
      $out/bin/$bin --generate complete-bash > $bash/$bin
      $out/bin/$bin --generate complete-zsh > $zsh/_$bin
      $out/bin/$bin --generate complete-fish > $fish/$bin.fish
    fi
  '';
in
{
  inherit
    commonDependencies
    contract
    contractDependencies
    crates
    dependencies
    keep
    layer
    libraries
    libraryFolders
    packagesOf
    resume
    tool
    toolDependencies
    toolFolders
    unpack
    ;
}
