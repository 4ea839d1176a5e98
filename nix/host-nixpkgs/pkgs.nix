# SPDX-License-Identifier: AGPL-3.0-or-later
# The packages of the stand-in. Each is a folder of small scripts that start the host's tools: what a build may use is only what its
# inputs name, as with the real nixpkgs, so that a forgotten input shows here too.
{ lib, host }:
let
  inherit (host) system;
  bash = "/bin/bash";

  # Whatever the versions are of enters every hash: another toolchain builds everything again.
  farm =
    name: tools:
    derivation {
      inherit name system;
      versions = builtins.toJSON host.versions;
      builder = bash;
      PATH = "/usr/bin:/bin";
      args = [
        "-euc"
        ''
          mkdir -p $out/bin
          for t in ${toString tools}; do
            p=$(PATH=/usr/sbin:/usr/bin:/sbin:/bin type -P $t) || { echo "host tool $t is missing" >&2; exit 1; }
            printf '#!/bin/sh\nexec %s "$@"\n' "$p" > $out/bin/$t
            chmod +x $out/bin/$t
          done
          exit 0 # Nix 2.8 stops a builder whose last command closes the log.
        ''
      ];
    }
    // {
      meta = { };
    };
  hostTool =
    name: bins:
    farm "host-${name}" bins
    // {
      pname = name;
      meta.mainProgram = builtins.head bins;
    };

  # What stdenv gives.
  stdTools = farm "host-stdenv-tools" (
    [ "bash" "sh" "cat" "cp" "mv" "rm" "ln" "ls" "mkdir" "rmdir" "chmod" "chown" "touch" "head" "tail" "sort" "uniq" ]
    ++ [ "wc" "tr" "cut" "tee" "od" "env" "dirname" "basename" "readlink" "realpath" "mktemp" "sha256sum" "date" "stat" ]
    ++ [ "seq" "sleep" "true" "false" "printf" "echo" "test" "expr" "id" "uname" "nproc" "install" "comm" "split" ]
    ++ [ "truncate" "dd" "timeout" "base64" "find" "xargs" "sed" "grep" "egrep" "awk" "tar" "gzip" "gunzip" "bzip2" "xz" ]
    ++ [ "make" "patch" "diff" "cmp" "file" "sync" "hostname" "paste" "nl" "fold" "fmt" "md5sum" "cksum" "which" "du" ]
  );
  ccTools = farm "host-cc" [
    "cc"
    "gcc"
    "c++"
    "g++"
    "ld"
    "ld.bfd"
    "ar"
    "as"
    "ranlib"
    "strip"
    "nm"
    "objcopy"
    "objdump"
    "readelf"
  ];

  setup = builtins.toFile "setup.sh" ''
    set -eu -o pipefail
    export PATH=
    for p in ''${nativeBuildInputs:-} ''${buildInputs:-} $stdPath; do PATH="$PATH''${PATH:+:}$p/bin"; done
    export HOME=/homeless-shelter SOURCE_DATE_EPOCH=''${SOURCE_DATE_EPOCH:-315532800} LC_ALL=C.UTF-8 TZ=UTC
    [ "''${NIX_BUILD_CORES:-0}" != 0 ] || export NIX_BUILD_CORES=$(nproc)
    runHook() { local h=$1; if declare -F $h >/dev/null; then $h; elif [ -n "''${!h:-}" ]; then eval "''${!h}"; fi; }
    unpackPhase() {
      runHook preUnpack
      if [ -d "$src" ]; then cp -r --preserve=mode,timestamps "$src" source; chmod -R u+w source; cd source; else tar xf "$src"; cd */; fi
      runHook postUnpack
    }
    buildPhase() { runHook preBuild; if [ -e Makefile ]; then make; fi; runHook postBuild; }
    checkPhase() { runHook preCheck; runHook postCheck; }
    installPhase() { runHook preInstall; if [ -e Makefile ]; then make install PREFIX=$out; fi; runHook postInstall; }
    runPhase() { if [ -n "''${!1:-}" ]; then eval "''${!1}"; else $1; fi; }
    genericBuild() {
      if [ -n "''${buildCommand:-}" ]; then eval "$buildCommand"; return; fi
      [ -n "''${dontUnpack:-}" ] || runPhase unpackPhase
      runHook postPatch
      runHook preConfigure
      [ -n "''${dontBuild:-}" ] || runPhase buildPhase
      [ -z "''${doCheck:-}" ] || runPhase checkPhase
      [ -n "''${dontInstall:-}" ] || runPhase installPhase
      runHook postFixup
    }
  '';

  mkDerivation =
    argsOrFn:
    let
      args = if lib.isFunction argsOrFn then argsOrFn args' else argsOrFn;
      args' = args // {
        finalPackage = drv;
      };
      drv = derivation (
        removeAttrs args [
          "meta"
          "passthru"
          "pname"
        ]
        // {
          name = args.name or "${args.pname}-${args.version}";
          inherit system;
          builder = bash;
          stdPath = [
            stdTools
            ccTools
          ];
          args = [
            "-c"
            "source ${setup}; genericBuild; exit 0"
          ];
        }
      );
    in
    drv
    // {
      meta = args.meta or { };
      passthru = args.passthru or { };
    }
    // lib.optionalAttrs (args ? pname) { inherit (args) pname; }
    // (args.passthru or { })
    // {
      overrideAttrs = f: mkDerivation (args // (if lib.isFunction (f args) then f args args else f args));
    };

  runCommand =
    name: env: buildCommand:
    mkDerivation ({ inherit name buildCommand; } // env);
  writeTextFile =
    {
      name,
      text,
      executable ? false,
      destination ? "",
      meta ? { },
      passthru ? { },
      checkPhase ? "",
    }:
    runCommand name
      {
        inherit text meta passthru;
        passAsFile = [ "text" ];
      }
      ''
        target=$out${destination}
        mkdir -p "$(dirname "$target")"
        cp "$textPath" "$target"
        chmod +w "$target"
        ${lib.optionalString executable ''chmod +x "$target"''}
        ${checkPhase}
      '';
  writeShellScriptBin =
    name: text:
    writeTextFile {
      inherit name;
      text = "#!${bash}\n${text}";
      executable = true;
      destination = "/bin/${name}";
      meta.mainProgram = name;
    };
  writeShellApplication =
    {
      name,
      text,
      runtimeInputs ? [ ],
      meta ? { },
    }:
    writeTextFile {
      inherit name;
      executable = true;
      destination = "/bin/${name}";
      meta = {
        mainProgram = name;
      }
      // meta;
      text = ''
        #!${bash}
        set -o errexit
        set -o nounset
        set -o pipefail
        export PATH="${lib.makeBinPath runtimeInputs}:$PATH"

        ${text}
      '';
      checkPhase = ''
        ${bash} -n "$target"
        ${hostTool "shellcheck" [ "shellcheck" ]}/bin/shellcheck "$target"
      '';
    };

  # A crate is a fixed-output derivation with Cargo.lock's own checksum. `cargo fetch --locked` has put its file into cargo's
  # cache beforehand, which is the only part of the host's home that a build sees.
  fetchCrate =
    {
      name,
      version,
      checksum,
      ...
    }:
    derivation {
      name = "${name}-${version}.crate";
      inherit system;
      inherit (host) cargoCache;
      builder = bash;
      PATH = "/usr/bin:/bin";
      outputHashMode = "flat";
      outputHashAlgo = "sha256";
      outputHash = checksum;
      args = [
        "-euc"
        ''
          f=$(ls -d "$cargoCache"/*/${name}-${version}.crate 2>/dev/null | head -1)
          [ -n "$f" ] || { echo "${name}-${version}: not in cargo's cache; run 'cargo fetch --locked' first" >&2; exit 1; }
          cp "$f" $out
          exit 0
        ''
      ];
    };
  importCargoLock =
    {
      lockFile ? null,
      lockFileContents ? builtins.readFile lockFile,
      ...
    }:
    let
      crates = builtins.filter (p: p ? source) (builtins.fromTOML lockFileContents).package;
      one = p: ''
        mkdir -p $out/${p.name}-${p.version}
        tar xzf ${fetchCrate p} -C $out/${p.name}-${p.version} --strip-components=1
        printf '{"files":{},"package":"${p.checksum}"}' > $out/${p.name}-${p.version}/.cargo-checksum.json
      '';
    in
    runCommand "cargo-vendor-dir" { } ("mkdir -p $out\n" + lib.concatMapStrings one crates);

  rustTool =
    name: bins:
    derivation {
      name = "host-${name}";
      inherit system;
      builder = bash;
      PATH = "/usr/bin:/bin";
      versions = builtins.toJSON host.versions;
      args = [
        "-euc"
        ''
          mkdir -p $out/bin
          for t in ${toString bins}; do
            # The sysroot's own tools find each other on PATH. Cargo's variables with a '-' in their name do not get through dash.
            printf '#!/bin/bash\nexec ${host.rustSysroot}/bin/%s "$@"\n' $t > $out/bin/$t
            chmod +x $out/bin/$t
          done
          exit 0
        ''
      ];
    }
    // {
      meta.mainProgram = builtins.head bins;
      pname = name;
    };
in
{
  inherit
    lib
    system
    runCommand
    writeTextFile
    writeShellScriptBin
    writeShellApplication
    ;
  # How nix/platform.nix knows.
  isHostStandIn = true;
  runCommandLocal = runCommand;
  writeText = name: text: writeTextFile { inherit name text; };
  symlinkJoin =
    {
      name,
      paths,
      meta ? { },
      passthru ? { },
      postBuild ? "",
    }:
    runCommand name { inherit meta passthru; } ''
      mkdir -p $out
      for p in ${toString paths}; do cp -rsf --no-preserve=mode $p/. $out/; done
      ${postBuild}
    '';
  linkFarm =
    name: entries:
    let
      list = if lib.isAttrs entries then lib.mapAttrsToList (name: path: { inherit name path; }) entries else entries;
      link = e: "mkdir -p $(dirname ${e.name}); ln -s ${e.path} ${e.name}\n";
    in
    runCommand name { } ("mkdir -p $out; cd $out\n" + lib.concatMapStrings link list);
  mkShell =
    {
      name ? "shell",
      packages ? [ ],
      shellHook ? "",
    }:
    mkDerivation {
      inherit name shellHook;
      nativeBuildInputs = packages;
      buildCommand = "printf '%s\\n' $nativeBuildInputs > $out";
      # What `nix develop` reads to know the environment.
      stdenv = runCommand "stdenv" { } "mkdir $out; cp ${setup} $out/setup";
    };
  stdenv = {
    inherit mkDerivation;
    hostPlatform = { inherit system; };
  };
  stdenvNoCC = {
    inherit mkDerivation;
    hostPlatform = { inherit system; };
  };
  rustPlatform = { inherit importCargoLock; };
  cargo = rustTool "cargo" [ "cargo" ];
  rustc = rustTool "rustc" [ "rustc" "rustdoc" ];
  clippy = rustTool "clippy" [ "cargo-clippy" "clippy-driver" ];
  rustfmt = rustTool "rustfmt" [ "cargo-fmt" "rustfmt" ];
  zstd = hostTool "zstd" [ "zstd" ];
  jq = hostTool "jq" [ "jq" ];
  cpio = hostTool "cpio" [ "cpio" ];
  bc = hostTool "bc" [ "bc" ];
  bison = hostTool "bison" [ "bison" ];
  flex = hostTool "flex" [ "flex" ];
  perl = hostTool "perl" [ "perl" ];
  util-linux = hostTool "util-linux" [ "flock" "getopt" ];
  # Headers and libraries lie in /usr.
  elfutils = hostTool "elfutils" [ "true" ];
  linux_6_12 = {
    src = host.kernelSource;
  };
}
