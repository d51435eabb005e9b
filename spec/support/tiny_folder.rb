# frozen_string_literal: true

require "digest"
require "fileutils"
require "json"
require_relative "seeded_models"
require_relative "gguf_recipes"

# The checkpoints of spec/fixtures/tiny as whole folders, in tmp/fixtures/tiny, with links to the other fixtures. The
# repository stores no file that can be computed or is the same as another; spec/fixtures/tiny_models/compaction.py says
# what it stores instead.
module TinyFolder
  SOURCE = File.join(SeededModels::FIXTURES, "tiny")
  TARGET = File.expand_path("../../tmp/fixtures", __dir__)
  LINKS = "links.json"
  LISTS = "lists.json"

  module_function

  # @return [String] the folder of tiny checkpoints
  def path
    File.join(fixtures, "tiny")
  end

  # @return [String] the folder of all fixtures, which is written again where those of the repository have changed
  def fixtures
    @fixtures ||= begin
      FileUtils.mkdir_p(File.dirname(TARGET))
      File.open("#{TARGET}.lock", File::RDWR | File::CREAT) do |lock|
        lock.flock(File::LOCK_EX)
        write unless File.exist?(stamp) && File.read(stamp) == state
      end
      TARGET
    end
  end

  # @return [String] what changes with the fixtures, and with the lines that write them
  def state
    code = %w[tiny_folder seeded_models gguf_recipes].map { |name| File.join(__dir__, "#{name}.rb") }
    files = Dir[File.join(SOURCE, "**/*")].select { |file| File.file?(file) }.sort
    lines = [*code, *files].map { |file| "#{file} #{File.size(file)} #{File.mtime(file).to_r}" }
    Digest::SHA256.hexdigest(lines.join("\n"))
  end

  def stamp
    "#{TARGET}.stamp"
  end

  def write
    folder = File.join("#{TARGET}.new", "tiny")
    FileUtils.rm_rf(["#{TARGET}.new", stamp])
    FileUtils.mkdir("#{TARGET}.new")
    FileUtils.cp_r(SOURCE, folder)
    others = Dir[File.join(SeededModels::FIXTURES, "*")] - [SOURCE]
    FileUtils.ln_s(others, "#{TARGET}.new")
    copy_links(folder)
    Dir[File.join(folder, "**/tensors.json")].each { |file| write_weights(file) }
    write_gguf(folder)
    FileUtils.rm([LINKS, LISTS].map { |name| File.join(folder, name) })
    FileUtils.rm_rf(TARGET)
    File.rename("#{TARGET}.new", TARGET)
    File.write(stamp, state)
  end

  def copy_links(folder)
    JSON.parse(File.read(File.join(folder, LINKS))).each do |target, source|
      FileUtils.mkdir_p(File.dirname(File.join(folder, target)))
      FileUtils.cp(File.join(SeededModels::FIXTURES, source), File.join(folder, target))
    end
  end

  def write_gguf(folder)
    lists = JSON.parse(File.read(File.join(folder, LISTS), encoding: "UTF-8"))
    Dir[File.join(folder, "**/*.gguf.json")].each do |file|
      GgufRecipes.write(file, folder, lists)
      FileUtils.rm(file)
    end
  end

  def write_weights(file)
    weights = SeededModels.safetensors(JSON.parse(File.read(file)))
    File.binwrite(File.join(File.dirname(file), "model.safetensors"), weights)
    FileUtils.rm(file)
  end
end
