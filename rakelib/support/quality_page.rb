# frozen_string_literal: true

# The table of docs/internals/quantization_quality.md. Rows of types that are not measured again stay as they are, as
# long as the model and the text are the same.
class QualityPage
  PATH = File.expand_path("../../docs/internals/quantization_quality.md", __dir__)
  TABLE = /(?<=<!-- table -->\n).*?(?=<!-- end -->)/m
  HEAD = ["type", "file", "perplexity", "perplexity in llama.cpp", "KL divergence (nats)", "same likeliest token",
          "measured"].freeze
  LLAMA_CPP = HEAD.index("perplexity in llama.cpp")
  private_constant :LLAMA_CPP

  # @param path [String]
  def initialize(path = PATH)
    @path = path
  end

  # @param note [String] what was measured
  # @param rows [Array<Array<String>>] cells without the date, of which the first is the type
  # @param date [String]
  # @return [void]
  def publish(note, rows, date: Time.now.strftime("%Y-%m-%d"))
    page = File.read(@path, encoding: "UTF-8")
    kept = page[TABLE].to_s.start_with?("#{note}\n") ? rows_of(page[TABLE]) : {}
    rows.each { |cells| kept[cells.first] = merged([*cells, date], kept[cells.first]) }
    lines = [HEAD, ["---"] * HEAD.size, *kept.values].map { |cells| "| #{cells.join(" | ")} |" }
    text = "#{note}\n\n#{lines.join("\n").gsub("_", "\\_")}\n"
    File.write(@path, page.sub(TABLE) { text })
  end

  private

  # By type.
  def rows_of(text)
    lines = text.lines.grep(/\A\|/).drop(2)
    rows = lines.map { |line| line.delete("\\").strip[1..-2].split("|", -1).map(&:strip) }
    rows.select { |cells| cells.size == HEAD.size }.to_h { |cells| [cells.first, cells] }
  end

  # llama.cpp reads the same file, whose number stays where it is not measured again.
  def merged(cells, before)
    cells[LLAMA_CPP] = before[LLAMA_CPP] if before && cells[LLAMA_CPP].empty? && before[1] == cells[1]
    cells
  end
end
