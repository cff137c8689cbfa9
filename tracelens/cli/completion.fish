function __tracelens_words
  switch "$argv[1]"
@cases@
  end
end
function __tracelens
  set -l words (commandline -opc)
  set -l path ''
  for word in $words[2..-1]
    string match -q -- '-*' $word; and continue
    set -l key (string trim -- "$path $word")
    if test -n "$(__tracelens_words $key)"
      set path $key
    else if test -z "$path"
      set path report
    end
  end
  set -l found (__tracelens_words (string trim -- "$path $words[-1]"))
  string match -q -- '-*' $words[-1]; and test -n "$found"; or set found (__tracelens_words "$path")
  string split -n ' ' -- "$found"
end
complete -c tracelens -a '(__tracelens)'
