# SPDX-License-Identifier: AGPL-3.0-or-later
# Programs that run in guests: static, at fixed addresses, for the x86-64 baseline, as guest/build makes them.
{
  pkgs,
  platform,
  rust,
  workspace,
}:
let
  inherit (pkgs) lib;
  check = import ./arguments.nix { inherit lib; };
  target = "x86_64-unknown-linux-gnu";
  flags = "-C target-feature=+crt-static -C relocation-model=static -C target-cpu=x86-64";

  # One of this repository's guest crates, with all of its programs.
  guest =
    folder:
    let
      inherit (workspace.crates.${folder}) name bins;
      folders = workspace.closure { folders = [ folder ]; };
    in
    rust.layer {
      inherit name;
      libraries = platform.staticLibraries;
      environment.hardeningDisable = [ "pie" ];
      meta = {
        license = lib.licenses.asl20;
        platforms = [ "x86_64-linux" ];
      };
      script = ''
        ${rust.unpack "source" (workspace.sources { inherit folders; }) folders}
        export RUSTFLAGS="$RUSTFLAGS ${flags}"
        cargo build --profile guest --locked --target ${target} $cargoFlags -p ${name}
        mkdir -p $out/bin
        for bin in ${toString bins}; do cp $CARGO_TARGET_DIR/${target}/guest/$bin $out/bin/; done
      '';
    };

  sdk = [ "guest/sdk" ];
  sdkFolders = workspace.closure { folders = sdk; };

  accepted = {
    name = check.name // {
      help = "the package to build, as Cargo.toml names it";
    };
    src = check.path // {
      help = "folder with Cargo.toml and Cargo.lock; the SDK is a dependency on chaoscontrol-sdk by its version";
    };
    cargoLock = check.path // {
      default = null;
      help = "the lock file; src's own unless it is given";
    };
    features = check.listOf check.text // {
      default = [ ];
      help = "features of the package to turn on";
    };
  };
  # A workload of another flake. Its manifest asks for `chaoscontrol-sdk` by version; the SDK of this flake is put in that place.
  mkChaosGuest =
    given:
    let
      args = check.apply "mkChaosGuest" accepted given;
      vendor = pkgs.rustPlatform.importCargoLock {
        lockFile = if args.cargoLock == null then args.src + "/Cargo.lock" else args.cargoLock;
      };
    in
    rust.layer {
      inherit (args) name;
      inherit vendor;
      libraries = platform.staticLibraries;
      environment.hardeningDisable = [ "pie" ];
      meta.mainProgram = args.name;
      script = ''
        ${rust.unpack "chaoscontrol" (workspace.sources { folders = sdk; }) sdkFolders}
        cp -r ${args.src} $NIX_BUILD_TOP/source
        chmod -R u+w $NIX_BUILD_TOP/source
        cd $NIX_BUILD_TOP/source
        export RUSTFLAGS="$RUSTFLAGS ${flags}"
        cargo build --release --target ${target} $cargoFlags -p ${args.name} \
          ${lib.optionalString (args.features != [ ]) "--features ${lib.concatStringsSep "," args.features}"} \
          --config "patch.crates-io.chaoscontrol-sdk.path='$NIX_BUILD_TOP/chaoscontrol/guest/sdk'"
        mkdir -p $out/bin
        find $CARGO_TARGET_DIR/${target}/release -maxdepth 1 -type f -executable -exec cp {} $out/bin/ ';'
      '';
    };
in
{
  inherit accepted guest mkChaosGuest;
}
