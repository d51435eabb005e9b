# frozen_string_literal: true

# The project's own text files, for specs that check rules about them.
module ProjectFiles
  ROOT = File.expand_path("../..", __dir__)

  module_function

  # @return [Array<String>] paths below the root that match one of the patterns
  def matching(*patterns)
    Dir.glob(patterns, base: ROOT).select { |path| File.file?(File.join(ROOT, path)) }.sort
  end

  def read(path)
    File.read(File.join(ROOT, path), encoding: "UTF-8")
  end

  # @return [Array<String>] "path:line" of every line for which the block is true
  def lines(*patterns)
    matching(*patterns).flat_map do |path|
      read(path).each_line.with_index(1).filter_map { |line, number| "#{path}:#{number}" if yield line, path }
    end
  end
end
