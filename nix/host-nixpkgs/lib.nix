# SPDX-License-Identifier: AGPL-3.0-or-later
# The functions of nixpkgs' lib that this project and flakes like it use, with the same names and meanings.
let
  inherit (builtins)
    attrNames
    concatMap
    concatStringsSep
    elem
    elemAt
    foldl'
    genList
    isAttrs
    length
    listToAttrs
    map
    replaceStrings
    stringLength
    substring
    ;
in
rec {
  inherit (builtins)
    all
    any
    attrNames
    attrValues
    concatLists
    concatMap
    concatStringsSep
    elem
    elemAt
    filter
    foldl'
    fromJSON
    fromTOML
    functionArgs
    genList
    head
    intersectAttrs
    isAttrs
    isBool
    isFunction
    isInt
    isList
    isPath
    isString
    length
    listToAttrs
    map
    mapAttrs
    match
    pathExists
    readDir
    readFile
    removeAttrs
    replaceStrings
    sort
    stringLength
    substring
    tail
    toJSON
    typeOf
    ;
  isDerivation = x: isAttrs x && x.type or null == "derivation";
  id = x: x;
  boolToString = b: if b then "true" else "false";
  nameValuePair = name: value: { inherit name value; };
  genAttrs = names: f: listToAttrs (map (n: nameValuePair n (f n)) names);
  mapAttrsToList = f: a: map (n: f n a.${n}) (attrNames a);
  mapAttrs' = f: a: listToAttrs (mapAttrsToList f a);
  concatMapAttrs = f: a: foldl' (x: y: x // y) { } (mapAttrsToList f a);
  filterAttrs =
    p: a: listToAttrs (concatMap (n: if p n a.${n} then [ (nameValuePair n a.${n}) ] else [ ]) (attrNames a));
  recursiveUpdate =
    x: y: x // builtins.mapAttrs (n: v: if isAttrs v && isAttrs (x.${n} or null) then recursiveUpdate x.${n} v else v) y;
  optional = c: x: if c then [ x ] else [ ];
  optionals = c: xs: if c then xs else [ ];
  optionalString = c: s: if c then s else "";
  optionalAttrs = c: a: if c then a else { };
  concatMapStrings = f: xs: concatStringsSep "" (map f xs);
  concatMapStringsSep =
    sep: f: xs:
    concatStringsSep sep (map f xs);
  concatStrings = concatStringsSep "";
  imap0 = f: xs: genList (i: f i (elemAt xs i)) (length xs);
  imap1 = f: xs: genList (i: f (i + 1) (elemAt xs i)) (length xs);
  range = a: z: if a > z then [ ] else genList (i: a + i) (z - a + 1);
  last = xs: elemAt xs (length xs - 1);
  unique = foldl' (seen: x: if elem x seen then seen else seen ++ [ x ]) [ ];
  hasPrefix = p: s: substring 0 (stringLength p) s == p;
  hasSuffix =
    p: s:
    let
      n = stringLength s;
      m = stringLength p;
    in
    n >= m && substring (n - m) m s == p;
  hasInfix = i: s: builtins.length (builtins.split (escapeRegex i) s) > 1;
  # The same signs as nixpkgs escapes: of others, "}" for one, an escape is none.
  escapeRegex = replaceStrings [ "\\" "[" "{" "(" ")" "^" "$" "?" "*" "+" "|" "." ] [
    "\\\\"
    "\\["
    "\\{"
    "\\("
    "\\)"
    "\\^"
    "\\$"
    "\\?"
    "\\*"
    "\\+"
    "\\|"
    "\\."
  ];
  removePrefix = p: s: if hasPrefix p s then substring (stringLength p) (stringLength s) s else s;
  removeSuffix = p: s: if hasSuffix p s then substring 0 (stringLength s - stringLength p) s else s;
  splitString = sep: s: builtins.filter builtins.isString (builtins.split (escapeRegex sep) s);
  escapeShellArg = a: "'${replaceStrings [ "'" ] [ "'\\''" ] (toString a)}'";
  escapeShellArgs = concatMapStringsSep " " escapeShellArg;
  makeBinPath = concatMapStringsSep ":" (p: "${p}/bin");
  getExe = p: "${p}/bin/${p.meta.mainProgram or p.pname or p.name}";
  getExe' = p: n: "${p}/bin/${n}";
  licenses = {
    agpl3Plus = {
      spdxId = "AGPL-3.0-or-later";
    };
    asl20 = {
      spdxId = "Apache-2.0";
    };
  };
  platforms.linux = [
    "x86_64-linux"
    "aarch64-linux"
  ];
}
