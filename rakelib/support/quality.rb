# frozen_string_literal: true

require "fileutils"
require "tmpdir"

require "candle"

require_relative "llama_cpp"
require_relative "quality_page"

# What a checkpoint loses in each quantized type: the perplexity of a text, and how far predictions are from those of
# the dense weights. One quantized file exists at a time, unless they are kept.
class Quality
  TYPES = (Candle::GgufMix::TYPES.keys - %w[f32 f16 bf16 tq1_0 tq2_0 mxfp4_moe]).freeze
  # Tokens of a piece; each is read alone.
  CONTEXT = 512
  # Files with one of these are compared without an importance matrix, too.
  BOTH = /\Aq|\Aiq[34]|fp4\z/

  # @param source [String] a directory with a safetensors checkpoint
  # @param text [String] a file
  # @param types [Array<String>] all of {TYPES} when empty
  # @param tokens [Integer] how many of the text are read
  # @param calibration [String, nil] a file with another text, for importance matrices; types below three bits need it
  # @param llama_cpp [Boolean] whether llama.cpp reads the files, too
  # @param files [String, nil] a directory where the quantized files stay; those that are there are not made again
  # @param page [QualityPage] where the table goes
  def initialize(source, text, types: [], tokens: 2048, calibration: nil, llama_cpp: !LlamaCpp.python.nil?, files: nil,
                 page: QualityPage.new)
    @source = source
    @files = files
    @page = page
    @types = types.empty? ? TYPES : types
    @tokens = tokens
    @calibration = calibration
    @llama_cpp = llama_cpp
    @text_name = File.basename(text)
    @text = File.read(text, encoding: "UTF-8")
  end

  # @param write [Boolean] whether rows go into docs/, each when it is measured, or only to standard output
  # @return [Array<Hash>] a row for each type
  def run(write: false)
    @reference = Candle::LLM.from_pretrained(@source, device: "cpu", dtype: "f32")
    @pieces = pieces
    rows = [{ type: "dense", **measured(@reference) }]
    show(rows, write)
    in_directory do |directory|
      @matrix = matrix(directory)
      wanted.each do |type, weighted|
        rows << row(directory, type, weighted)
        show(rows, write)
      end
    end
    rows
  end

  private

  def in_directory(&)
    return Dir.mktmpdir(&) unless @files

    FileUtils.mkdir_p(@files)
    yield @files
  end

  def pieces
    ids = @reference.tokenizer.encode(@text).first(@tokens)
    size = [CONTEXT, @reference.context_length - 8].min
    ids.each_slice(size).select { |piece| piece.size > 1 }.map { |piece| @reference.tokenizer.decode(piece) }
  end

  def matrix(directory)
    return unless @calibration

    path = File.join(directory, "imatrix.gguf")
    return path if File.exist?(path)

    Candle::Quantizer.imatrix(@source, text: @calibration, to: path, device: "cpu")
  end

  # Pairs of a type and whether it uses the importance matrix.
  def wanted
    @types.flat_map do |type|
      [([type, false] if type.match?(BOTH)), ([type, true] if @matrix)].compact
    end
  end

  def row(directory, type, weighted)
    path = file(directory, type, weighted)
    llm = Candle::LLM.from_pretrained(path, device: "cpu")
    { type: weighted ? "#{type} with imatrix" : type, bytes: File.size(path), **measured(llm), **compared(llm),
      llama_cpp: @llama_cpp && read_by_llama(path) }
  ensure
    llm&.close
    FileUtils.rm_f(path) if path && !@files
  end

  # A quantized file has its name when it is whole.
  def file(directory, type, weighted)
    path = File.join(directory, "#{type}#{"-imatrix" if weighted}.gguf")
    return path if File.exist?(path)

    Candle::Quantizer.quantize(@source, to: path, type: type, imatrix: weighted ? @matrix : nil)
  end

  def measured(llm)
    found = @pieces.flat_map { |piece| llm.logprobs(piece).filter_map { |token| token[:logprob] } }
    { tokens: found.size, perplexity: perplexity(found) }
  end

  # The perplexity of the same tokens.
  def read_by_llama(path)
    LlamaCpp.open(path) do |llama|
      perplexity(@pieces.flat_map { |piece| llama.logprobs(@reference.tokenizer.encode(piece)) })
    end
  end

  def perplexity(logprobs)
    Math.exp(-logprobs.sum / logprobs.size)
  end

  # Means over the pieces, by their predictions.
  def compared(llm)
    parts = @pieces.map do |piece|
      [llm.kl_divergence(piece, reference: @reference), llm.tokenizer.encode(piece).size - 1]
    end
    mean = ->(key) { parts.sum { |part, weight| part[key] * weight } / parts.sum(&:last) }
    { kl_divergence: mean.call(:mean), same_token: mean.call(:same_token) }
  end

  def show(rows, write)
    puts cells(rows.last).join("  ")
    $stdout.flush
    @page.publish(note(rows), [cells(rows.last)]) if write
  end

  # As the page has them, without the date.
  def cells(row)
    [row[:type], row[:bytes] ? format("%.1f MB", row[:bytes] / 1e6) : "", format("%.4f", row[:perplexity]),
     row[:llama_cpp] ? format("%.4f", row[:llama_cpp]) : "",
     row[:kl_divergence] ? format("%.5f", row[:kl_divergence]) : "",
     row[:same_token] ? format("%.1f %%", 100 * row[:same_token]) : ""]
  end

  def note(rows)
    "#{File.basename(@source)}, #{rows.first[:tokens]} predictions of #{@text_name}."
  end
end
