# frozen_string_literal: true

require "open3"
require "tmpdir"

RSpec.describe "Active Storage" do
  model = TinyModels.path("speech/whisper")
  sound = File.expand_path("../fixtures/audio/tones.wav", __dir__)
  # The guide's job, in an application of its own.
  job = File.read(File.expand_path("../../docs/guides/speech.md", __dir__))[/^class TranscribeJob.*?^end$/m]

  def rails(script, folder)
    Open3.capture2e(RbConfig.ruby, "-e", script, chdir: folder)
  end

  it "has its recordings transcribed by a job" do
    output, status = Dir.mktmpdir do |folder|
      rails(<<~RUBY, folder)
        require "rails"
        require "active_job/railtie"
        require "active_record/railtie"
        require "active_storage/engine"
        require "candle"
        class Application < Rails::Application
          config.root = Dir.pwd
          config.eager_load = false
          config.secret_key_base = "only for this example"
          config.logger = Logger.new(File::NULL)
          config.active_job.queue_adapter = :inline
          config.active_storage.service = :local
          config.active_storage.service_configurations = { local: { service: "Disk", root: Dir.pwd } }
        end
        ENV["DATABASE_URL"] = "sqlite3::memory:"
        Application.initialize!
        class ApplicationRecord < ActiveRecord::Base
          self.abstract_class = true
        end
        ApplicationJob = Class.new(ActiveJob::Base)
        ActiveRecord::Migration.verbose = false
        migrations = File.join(ActiveStorage::Engine.root, "db/migrate")
        ActiveRecord::MigrationContext.new(migrations, ActiveRecord::SchemaMigration).migrate
        ActiveRecord::Schema.define { create_table(:notes) { |table| table.text :text } }
        class Note < ApplicationRecord
          has_one_attached :recording
        end
        SPEECH = Candle::Transcriber.from_pretrained(#{model.dump}, device: "cpu")
        #{job}
        note = Note.create!
        note.recording.attach(io: File.open(#{sound.dump}), filename: "a.wav", content_type: "audio/wav")
        TranscribeJob.perform_later(note)
        print note.reload.text
      RUBY
    end
    expect(status).to be_success, output
    expect(output).to eq(Candle::Transcriber.from_pretrained(model, device: "cpu").transcribe(sound).text)
  end
end
