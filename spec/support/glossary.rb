# frozen_string_literal: true

# The words that our prose avoids, each with the term of the field to use instead.
module Glossary
  # A pattern is as narrow as ordinary English needs it: "there is no file" and "read ahead" stay possible.
  AVOIDED = {
    /\bcaller's texts?\b/ => "request, sequence",
    /\bpass(es)? (of (so many )?texts|over the weights)\b/ => "step, forward pass",
    /\b(texts|calls|requests) that (meet|come together)\b|\bcalls (of several threads )?that meet\b/ =>
      "continuous batching, dynamic batching",
    /\b(gathering|desk|desks)\b/ => "dynamic batching, queue",
    /\bread(s|ing)? (a |the |their |its |whose )?prompts? in parts\b|\bprompts? (is|are) read in parts\b/ =>
      "chunked prefill",
    /\bthe pace of\b|\bpace of (a|the) prompts?\b/ => "chunk size",
    /\bwrit(es|ing) on\b(?! (a|the|disk|paper|to|standard)\b)/ => "decode",
    /\bshared beginnings?\b|\b(begins?|beginning) alike\b|\ba (common|shared) beginning\b/ => "prefix cache, prefix",
    /\bhouses?\b|\bmakes? room\b/ => "KV cache, preempt",
    /\bguesses\b|\bguessing\b|\b(model|one) that guesses\b/ => "speculative decoding, draft",
    /\b(models?|ones?) that sees?\b|\bsight\b|\bguests?\b/ => "vision-language model, image embeddings",
    /\bask(s|ed|ing)? for what (comes|follows|is) next\b/ => "prefetch",
    /\btiles of bytes\b/ => "int8 tiles",
    /\blaid open\b|\bexpanded blocks?\b|\bblocks? (is|are) expanded\b/ => "dequantized",
    /\bhand(s|ed|ing)? (it |them )?over\b|\bteam of threads\b/ => "thread pool, work item",
    /\b(draw(s|n|ing)?|walk(s|ed|ing)?) (a |the |its |some )?(graphs?|links)\b|\bgraphs? (is|was) (drawn|walked)\b/ =>
      "build, search",
    /\bmend(s|ed|ing)?\b/ => "repair, fix",
    /\bprov(e|es|ed|ing)\b/ => "self-check, smoke test, verify",
    /\b(giv(e|es|ing|en)|gave|tak(e|es|ing|en)|took) (the |its |their |his |up to )?(\w+ )?up\b(?! to)/ => "free, load",
    /(?<!there )\b(is|are) none\b(?! of)|\bcan('t|not) be had\b|\b(lack|lacks|lacking)\b/ =>
      "missing, unsupported, invalid",
    /(?<!there )\b(is|are) no (?!(longer|more|fewer|less|larger|better|slower|faster|one|limit|part|error)\b)\w/ =>
      "unsupported, invalid, not a",
    /\b(held|hold|holds|holding) to\b|\bhold(s|ing)? (a|an|the|it|its) \w+( \w+)? to (a|an|the)\b/ =>
      "compared with, constrained to",
    /\ba device that was named\b/ => "an explicit device",
    /\banew\b|\bwhoever\b/ => "again, a named thread, process or caller",
    /\bnever an address\b/ => "URLs are not fetched",
    /\b(loses|lose) (and doubles? )?nothing\b|\bdoubles nothing\b/ => "idempotent and resumable"
  }.transform_keys { |pattern| Regexp.new(pattern.source, Regexp::IGNORECASE) }.freeze

  # Parts of names of files, types and methods.
  NAMES = /(?:\A|_)(?:gathering|desks?|sights?|guests?|houses?|eyes|impressions?|mend(?:s|ed|ing)?|pace|laid_open|
                     given?_up|take_up|make_room|prove[sd]?|hand_over)(?:_|\z)/x
  DEFINITION = /^\s*(?:pub(?:\([^)]*\))?\s+)?(?:(?:const|unsafe|async)\s+)*
                (?:struct|enum|trait|fn|mod|type|class|module|def)\s+(?:self\.)?(\w+)/x

  module_function

  # @param path [String] a file of Rust or Ruby
  # @return [Array<String>] its name, and what it defines, where these have avoided words
  def names(path)
    defined = File.read(path, encoding: "UTF-8").scan(DEFINITION).flatten
    [File.basename(path, ".*"), *defined].select do |name|
      name.gsub(/([a-z0-9])([A-Z])/, '\1_\2').downcase.match?(NAMES)
    end
  end

  # @param text [String]
  # @return [Array<String>] what should be said otherwise
  def findings(text)
    text = text.gsub(/\s+/, " ")
    AVOIDED.flat_map do |pattern, instead|
      found = []
      text.scan(pattern) { found << Regexp.last_match }
      found.map { |match| "…#{around(match)}…: say #{instead}" }
    end
  end

  # @param markdown [String]
  # @return [String] its prose, without code
  def prose(markdown)
    markdown.gsub(/^```.*?^```/m, "").gsub(/`[^`\n]*`/, "x")
  end

  # @param path [String] a file of Rust or Ruby
  # @return [Array<String>] the comments in it without code and types, consecutive lines joined
  def comments(path)
    mark = path.end_with?(".rs") ? %r{(?:\A|\s)//[/!]?(?!/)(.*)} : /\A\s*#(.*)/
    lines = File.foreach(path).map { |line| line[mark, 1] }
    runs = lines.slice_when { |before, after| before.nil? || after.nil? }.map(&:compact).reject(&:empty?)
    runs.map { |run| prose(run.map(&:strip).join("\n")).gsub(/\[[^\]]*\]/, "") }
  end

  def around(match)
    "#{match.pre_match[-30..] || match.pre_match}#{match}#{match.post_match[0, 30]}"
  end
end
